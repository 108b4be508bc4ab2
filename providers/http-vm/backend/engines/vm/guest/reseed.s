# ioctl(0, RNDRESEEDCRNG): writing to /dev/urandom alone leaves the generators of two clones alike.
# `reseed < /dev/urandom`, as small as it can be: each clone runs it.
.globl _start
_start:
	xorl %edi, %edi
	movl $0x5207, %esi
	movl $16, %eax
	syscall
	xorl %edi, %edi
	movl $60, %eax
	syscall

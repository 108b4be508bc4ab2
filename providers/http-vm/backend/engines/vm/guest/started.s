# The runtime's poststart hook: `started FILE FIFO` makes the file, and writes a line to the fifo when somebody has it open.
# A shell would take longer than all the rest of a container's start.
.globl _start
_start:
	movq 16(%rsp), %rdi
	movl $0x41, %esi            # O_WRONLY | O_CREAT
	movl $0600, %edx
	movl $2, %eax               # open
	syscall
	movq 24(%rsp), %rdi
	movl $0x801, %esi           # O_WRONLY | O_NONBLOCK
	movl $2, %eax
	syscall
	movl %eax, %edi
	leaq line(%rip), %rsi
	movl $1, %edx
	movl $1, %eax               # write; nobody waits when open has failed
	syscall
	xorl %edi, %edi
	movl $60, %eax              # exit
	syscall
line:
	.ascii "\n"

# Where a program begins, and how it calls the kernel: call(number, a, b, c, d, e, f).
.globl _start
_start:
	xorl %ebp, %ebp
	movq (%rsp), %rdi           # argc
	leaq 8(%rsp), %rsi          # argv
	leaq 16(%rsp,%rdi,8), %rdx  # envp
	andq $-16, %rsp
	call main
	movl %eax, %edi
	movl $60, %eax              # exit
	syscall
.globl call
call:
	movq %rdi, %rax
	movq %rsi, %rdi
	movq %rdx, %rsi
	movq %rcx, %rdx
	movq %r8, %r10
	movq %r9, %r8
	movq 8(%rsp), %r9
	syscall
	ret

package main

import (
	"bufio"
	"cmp"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Longer lines come as several records, all but the last marked P.
const lineBytes = 16 * 1024

// end is how an instance of a container ended.
type end struct {
	ExitCode int    `json:"exit_code"`
	Reason   string `json:"reason"`
	Message  string `json:"message,omitempty"`
	At       string `json:"at"`
}

// shim is one instance of a container, from its start to its end. Its folder is the current one, its input a pipe on which
// the backend sends signals.
func shim() error {
	var record record
	if _, err := readFile("../record.json", &record); err != nil {
		return err
	}
	main := record.Spec.Containers[0]
	log, err := os.OpenFile("log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := writeFile("started", now()); err != nil {
		return err
	}
	// A process dies with the thread that started it (Pdeathsig): none runs without its shim.
	runtime.LockOSThread()
	words := append(main.Command, main.Args...)
	command := exec.Command(words[0], words[1:]...)
	command.Dir = main.WorkingDir
	if command.Dir == "" {
		command.Dir = "/"
	}
	command.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/bin:/bin"), "HOME=/"}
	for _, each := range main.Env {
		command.Env = append(command.Env, each.Name+"="+each.Value)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	var readers sync.WaitGroup
	outputs := []*os.File{}
	for _, each := range []struct {
		stream string
		to     *io.Writer
	}{{"stdout", &command.Stdout}, {"stderr", &command.Stderr}} {
		reader, writer, err := os.Pipe()
		if err != nil {
			return err
		}
		*each.to = writer
		outputs = append(outputs, writer)
		readers.Add(1)
		go func() {
			defer readers.Done()
			copyLines(reader, log, each.stream)
		}()
	}
	if err := command.Start(); err != nil {
		code := 126
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			code = 127
		}
		return writeFile("exit", end{ExitCode: code, Reason: "StartError", Message: err.Error(), At: now()})
	}
	for _, each := range outputs {
		each.Close()
	}
	pid := command.Process.Pid
	go passSignals(pid)
	// Until it is reaped, its number is nobody else's: what it has left behind can be killed without a doubt.
	var info [128]byte
	for {
		const pPid, wExited, wNoWait = 1, 4, 0x01000000
		_, _, failed := syscall.Syscall6(syscall.SYS_WAITID, pPid, uintptr(pid), uintptr(unsafe.Pointer(&info)), wExited|wNoWait, 0, 0)
		if failed != syscall.EINTR {
			break
		}
	}
	syscall.Kill(-pid, syscall.SIGKILL)
	drained := make(chan struct{})
	go func() { readers.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(5 * time.Second): // what has left its session holds the pipe
	}
	command.Wait()
	status := command.ProcessState.Sys().(syscall.WaitStatus)
	ended := end{ExitCode: status.ExitStatus(), Reason: "Completed", At: now()}
	if status.Signaled() {
		ended.ExitCode = 128 + int(status.Signal())
	}
	if ended.ExitCode != 0 {
		ended.Reason = "Error"
	}
	return writeFile("exit", ended)
}

func passSignals(pid int) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if number, err := strconv.Atoi(lines.Text()); err == nil {
			syscall.Kill(-pid, syscall.Signal(number))
		}
	}
}

// copyLines goes from the pipe to the log, in the format of container runtimes. Each record is one write, so two streams
// can share it.
func copyLines(source io.Reader, log io.Writer, stream string) {
	lines := bufio.NewReaderSize(source, lineBytes)
	for {
		line, err := lines.ReadSlice('\n')
		mark := "P"
		if bytes.HasSuffix(line, []byte("\n")) {
			line, mark = line[:len(line)-1], "F"
		}
		if err == nil || len(line) > 0 {
			at := time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z")
			log.Write(append(append([]byte(fmt.Sprintf("%s %s %s ", at, stream, mark)), line...), '\n'))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

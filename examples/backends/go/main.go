// A backend of the Machine API with nothing but Go's standard library (1.22 or newer, Linux).
//
//	go run . -state ./state -port 8480
//
// A machine is one process of this host with whatever it starts: no image, no isolation, one container. It has the core of
// the API and no capability, and keeps every rule of it, those of restarts included: kill it with -9 whenever you like.
//
// How it is built, and what to keep when your platform takes the processes' place:
//
//   - What was asked for is on disk before anything is done about it (Backend.save): a create that was answered is never
//     forgotten, and a deleted id stays deleted.
//   - Beside each process is a small one, the shim (shim.go), that writes down its output and how it ended. It needs no backend.
//   - One loop (Backend.tend) looks at what is and does the next step towards what is wanted. It has no memory of its own, so
//     that a backend which starts again simply goes on.
//
// What it leaves out: logs are not rotated, and a process that makes itself a session of its own outlives its machine.
//
// machine.go is the machines, spec.go what a request may hold, http.go the routes, logs.go the logs.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	state := flag.String("state", "state", "folder of all that it knows")
	port := flag.Int("port", 8480, "port on 127.0.0.1")
	isShim := flag.Bool("shim", false, "run one instance of a container (for the backend itself)")
	flag.Parse()
	if *isShim {
		if err := shim(); err != nil {
			log.Fatal(err)
		}
		return
	}
	folder, err := filepath.Abs(*state)
	if err != nil {
		log.Fatal(err)
	}
	backend, err := openBackend(folder)
	if err != nil {
		log.Fatal(err)
	}
	token, err := tokenIn(folder)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	go backend.tendAll()
	fmt.Printf("listening on http://%s, the token is in %s\n", listener.Addr(), filepath.Join(*state, "token"))
	log.Fatal(http.Serve(listener, &server{backend: backend, token: token}))
}

// tokenIn makes the token that every client has to bring, the first time.
func tokenIn(folder string) (string, error) {
	path := filepath.Join(folder, "token")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(randomHex(32))
		err = os.WriteFile(path, text, 0o600)
	}
	return strings.TrimSpace(string(text)), err
}

func randomHex(bytes int) string {
	data := make([]byte, bytes)
	rand.Read(data)
	return hex.EncodeToString(data)
}

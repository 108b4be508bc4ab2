// Command socket-proxy hands each connection to a Unix socket to the next one to a TCP port: how Kubernetes' tests of
// Dynamic Resource Allocation, whose driver is the program of the tests, reach a kubelet's plugin sockets from a pod. It
// stands in for the proxy mode of the CSI driver hostpath, and takes that one's flags.
package main

import (
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
)

func main() {
	endpoint := flag.String("endpoint", "", "path of the Unix socket, with or without unix://")
	proxied := flag.String("proxy-endpoint", "", "tcp://ADDRESS:PORT, whose clients serve the socket's")
	flag.Int("v", 0, "ignored")
	flag.Parse()

	path := strings.TrimPrefix(*endpoint, "unix://")
	// Of one that was killed.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	clients, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	servers, err := net.Listen("tcp", strings.TrimPrefix(*proxied, "tcp://"))
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := clients.Accept()
		if err != nil {
			log.Fatal(err)
		}
		server, err := servers.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go join(client, server)
	}
}

// join copies both ways until either side ends.
func join(client, server net.Conn) {
	var once sync.Once
	end := func() {
		client.Close()
		server.Close()
	}
	go func() {
		io.Copy(server, client)
		once.Do(end)
	}()
	io.Copy(client, server)
	once.Do(end)
}

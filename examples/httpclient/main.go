// Command httpclient sends HTTP requests to three servers, one of which refuses
// every fifth of its requests and one of which is stopped half-way, and shows that no
// request fails. The servers are started by the program itself.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/switchyard-dev/switchyard/httpclient"
)

func main() {
	var counts [3]atomic.Int64
	servers := make([]*httptest.Server, len(counts))
	endpoints := make([]httpclient.Endpoint, len(counts))
	for i := range servers {
		servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := counts[i].Add(1); i == 1 && n%5 == 0 {
				httpclient.Refuse(w, "full") // nothing was done: send it elsewhere
				return
			}
			if _, err := io.Copy(w, r.Body); err != nil {
				log.Print(err)
			}
		}))
		defer servers[i].Close()
		endpoints[i] = httpclient.Endpoint{URL: servers[i].URL}
	}

	transport, err := httpclient.New(httpclient.Config{Service: "echo", Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	defer transport.Close()
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}

	const requests = 300
	failed := 0
	for i := range requests {
		if i == requests/2 {
			servers[2].Close() // a server goes away
		}
		if err := echo(client, fmt.Sprint("message ", i)); err != nil {
			failed++
			log.Print(err)
		}
	}
	fmt.Printf("%d requests, %d failed\n", requests, failed)
	for i := range counts {
		fmt.Printf("server %d got %d requests\n", i, counts[i].Load())
	}
}

// echo sends a message and checks that it comes back. PUT is idempotent: when a
// connection breaks and nobody knows what the server has done, it is sent again. A
// POST would need an Idempotency-Key for that.
func echo(client *http.Client, message string) error {
	req, err := http.NewRequest(http.MethodPut, "http://echo/", strings.NewReader(message))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || string(text) != message {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

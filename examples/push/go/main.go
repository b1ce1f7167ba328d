// Receives messages that Quaymaster pushes: verifies each call, and prints its event.
//
//	PUSH_SECRET=whsec_... go run . 8080
//
// The secret is what `quaymaster queue push show QUEUE --secret` prints.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const bodyBytesMax = 2 << 20

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("PUSH_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	receiver := &receiver{webhook: webhook, seen: map[string]bool{}}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], receiver))
}

type receiver struct {
	webhook *standardwebhooks.Webhook
	lock    sync.Mutex
	// In memory this is good for an example only. Keep ids in your database, and insert one in the transaction that has
	// the effects of its message: the id that is there already is that of a message that was worked on before.
	seen map[string]bool
}

func (r *receiver) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodOptions {
		// Quaymaster asks whether calls are wanted before it calls an endpoint, and again each day.
		answer.Header().Set("WebHook-Allowed-Origin", request.Header.Get("WebHook-Request-Origin"))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(answer, request.Body, bodyBytesMax))
	if err != nil {
		http.Error(answer, "the body cannot be read", http.StatusBadRequest)
		return
	}
	// Before anything parses the body: the signature is of its bytes.
	if err := r.webhook.Verify(body, request.Header); err != nil {
		http.Error(answer, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	id := request.Header.Get("Ce-Id")
	if !r.seen[id] {
		var data any = string(body)
		if strings.HasPrefix(request.Header.Get("Content-Type"), "application/json") {
			data = json.RawMessage(body)
		}
		line, err := json.Marshal(map[string]any{"id": id, "data": data})
		if err != nil {
			http.Error(answer, "the body is no JSON", http.StatusBadRequest)
			return
		}
		fmt.Println(string(line))
		r.seen[id] = true
	}
	// What is answered now is deleted.
}

// Runs all scenarios at the same time and prints what came of each, as tests/compat/foreign.py reads it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const limit = 60 * time.Second

// A scenario panics (see must and equal) when something is not as it should be.
type scenario func(ctx context.Context)

func run(action scenario) (failure *string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if thrown := recover(); thrown != nil {
			text := fmt.Sprintf("%v\n%s", thrown, debug.Stack())
			failure = &text
		}
	}()
	action(ctx)
	return nil
}

func main() {
	scenarios := map[string]scenario{}
	maps.Copy(scenarios, sdkScenarios)
	maps.Copy(scenarios, errorScenarios())
	maps.Copy(scenarios, kedaScenarios)

	var done sync.WaitGroup
	var printing sync.Mutex
	for name, action := range scenarios {
		done.Add(1)
		go func() {
			defer done.Done()
			outcome, err := json.Marshal(struct {
				Scenario string  `json:"scenario"`
				Error    *string `json:"error"`
			}{name, run(action)})
			if err != nil {
				panic(err)
			}
			printing.Lock()
			defer printing.Unlock()
			fmt.Fprintln(os.Stdout, string(outcome))
		}()
	}
	done.Wait()
}

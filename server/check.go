package server

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"weir/limits"
	"weir/limits/wire"
)

// An exchange is the memory that one request needs, used again by later ones.
type exchange struct {
	body     []byte
	large    []byte // what body is part of if it is large; lent
	requests []limits.Request
	results  []limits.Result
	answer   []byte

	budget *memoryBudget // of which held is taken
	held   int64
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// makeResults makes room for a result for each request.
func (x *exchange) makeResults() []limits.Result {
	x.results = slices.Grow(x.results[:0], len(x.requests))[:len(x.requests)]
	return x.results
}

// release makes x free for others. The requests hold strings of the caller's, which are not to be kept alive.
func (x *exchange) release() {
	if x.large != nil {
		freeBody(x.large)
		x.large, x.body = nil, nil
	}
	clear(x.requests)
	clear(x.results)
	if x.held > 0 {
		x.budget.used.Add(-x.held)
		x.held = 0
	}
	exchanges.Put(x)
}

// handleCheck answers POST /v1/check.
func (s *Server) handleCheck(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	defer s.checks.Add(-1)
	if s.checks.Add(1) > s.maxConns {
		s.failBusy(w, r, "too many requests at a time; send again in a moment")
		return
	}
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r, maxBody, &s.budget) {
		return
	}
	var err error
	if x.requests, err = wire.ReadRequests(x.requests[:0], x.body); err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	s.node.CheckAll(r.Context(), x.requests, x.makeResults())
	x.answer = wire.AppendResults(x.answer[:0], x.results)
	s.metrics.items.Update(float64(len(x.results)))
	writeJSON(w, http.StatusOK, x.answer)
	s.metrics.duration.Update(time.Since(start).Seconds())
}

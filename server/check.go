package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"weir/limits"
)

// maxBody bounds the body of a request: 1,000 items of some 1,000 bytes, the longest keys excepted.
const maxBody = 1 << 20

// An exchange is the memory that one request needs, used again by later ones.
type exchange struct {
	body     []byte
	requests []limits.Request
	results  []limits.Result
	answer   []byte
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// release gives x back. The requests hold strings of the caller's, which are not to be kept alive.
func (x *exchange) release() {
	clear(x.requests)
	exchanges.Put(x)
}

// handleCheck answers POST /v1/check.
func (s *Server) handleCheck(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	x := exchanges.Get().(*exchange)
	defer x.release()
	if !s.readBody(x, w, r) {
		return
	}
	var err error
	x.requests, err = limits.ReadRequests(x.requests[:0], x.body)
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, "unreadable", err.Error())
		return
	}
	x.results = x.results[:0]
	for i := range x.requests {
		x.results = append(x.results, s.decide(&x.requests[i]))
	}
	x.answer = limits.AppendResults(x.answer[:0], x.results)
	s.metrics.count(x.requests, x.results)
	writeJSON(w, http.StatusOK, x.answer)
	s.metrics.duration.Update(time.Since(start).Seconds())
}

// decide has one item decided by whoever counts it.
func (s *Server) decide(r *limits.Request) limits.Result {
	result := s.limiter.Check(*r)
	result.Metadata.Owner = s.owner
	return result
}

// readBody reads the whole body into x, or answers why it can't and gives false.
func (s *Server) readBody(x *exchange, w http.ResponseWriter, r *http.Request) bool {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		w.Header().Set("Accept-Encoding", "identity")
		s.fail(w, r, http.StatusUnsupportedMediaType, "encoding", "send the body as it is, without Content-Encoding")
		return false
	}
	if r.ContentLength > maxBody {
		s.failTooLarge(w, r)
		return false
	}
	var err error
	x.body, err = readAll(x.body[:0], http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case errors.As(err, &tooLarge):
		s.failTooLarge(w, r)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		s.fail(w, r, http.StatusRequestTimeout, "timeout", "the body took too long to arrive")
	default:
		s.fail(w, r, http.StatusBadRequest, "unreadable", "the body broke off")
	}
	return false
}

func (s *Server) failTooLarge(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB (1048576 bytes); send fewer items at a time")
}

// readAll is io.ReadAll into memory that is there already.
func readAll(dst []byte, r io.Reader) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return dst, err
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body) // an error means that the client has gone
}

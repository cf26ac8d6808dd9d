package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
)

const (
	maxBody     = 1 << 20   // of a client's request: 1,000 items of some 1,000 bytes
	smallBody   = 64 << 10  // what any request may take; larger ones share
	sizeStep    = 256 << 10 // by which those differ, so that the memory of one is good for others
	largeBodies = 256 << 20 // in all, so that many large requests, sent or read slowly, can't fill the memory
)

var (
	// errBusy is for a body that is one too many.
	errBusy     = errors.New("too many large requests at a time; send again in a moment, or fewer items at a time")
	errTooLarge = errors.New("the body is too large")
)

// usedBodies keeps the memory of large bodies (as *[]byte) for others, since the garbage collector would have little
// else to do.
var usedBodies sync.Pool

// readBody reads the whole body into x, or answers why it can't and returns false.
func (s *Server) readBody(x *exchange, w http.ResponseWriter, r *http.Request, most int64, budget *memoryBudget) bool {
	if encoding := r.Header["Content-Encoding"]; len(encoding) > 0 && encoding[0] != "" && encoding[0] != "identity" {
		w.Header().Set("Accept-Encoding", "identity")
		s.fail(w, r, http.StatusUnsupportedMediaType, "encoding", "send the body as it is, without Content-Encoding")
		return false
	}
	if r.ContentLength > most {
		s.failTooLarge(w, r, most)
		return false
	}
	err := x.readBodyFrom(r.Body, int(r.ContentLength), int(most), budget)
	switch {
	case err == nil:
		return true
	case err == errBusy:
		closeAfter(w, r) // what is left of the body is not worth reading
		s.failBusy(w, r, err.Error())
	case err == errTooLarge:
		closeAfter(w, r)
		s.failTooLarge(w, r, most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		closeAfter(w, r)
		s.fail(w, r, http.StatusRequestTimeout, "timeout", "the body took too long to arrive")
	default:
		s.fail(w, r, http.StatusBadRequest, "unreadable", "the body broke off")
	}
	return false
}

// closeAfter has the connection closed after the answer, unless it carries other requests as well.
func closeAfter(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

func (s *Server) failBusy(w http.ResponseWriter, r *http.Request, message string) {
	w.Header().Set("Retry-After", "1")
	s.fail(w, r, http.StatusServiceUnavailable, "busy", message)
}

func (s *Server) failTooLarge(w http.ResponseWriter, r *http.Request, most int64) {
	s.fail(w, r, http.StatusRequestEntityTooLarge, "too_large",
		"the body is larger than "+strconv.FormatInt(most>>20, 10)+" MiB; send fewer items at a time")
}

// readBodyFrom reads all of r into x, whose memory it enlarges as far as the budget allows. The size to expect is a
// hint, which is followed once the first part has really come.
func (x *exchange) readBodyFrom(r io.Reader, expect, most int, budget *memoryBudget) error {
	x.body = x.body[:0]
	for {
		if len(x.body) == cap(x.body) && !x.enlarge(expect, budget) {
			return errBusy
		}
		n, err := r.Read(x.body[len(x.body):cap(x.body)])
		x.body = x.body[:len(x.body)+n]
		switch {
		case len(x.body) > most:
			return errTooLarge
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// enlarge makes the memory for the body larger. It returns false if the budget does not allow that.
func (x *exchange) enlarge(expect int, budget *memoryBudget) bool {
	size := max(4<<10, 2*cap(x.body))
	if expect >= cap(x.body) {
		size = expect + 1 // one more, to read the end into
		if cap(x.body) < smallBody {
			size = min(size, smallBody)
		}
	}
	if size <= smallBody {
		x.body = append(make([]byte, 0, size), x.body...)
		return true
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	if !x.reserve(budget, int64(size)) {
		return false
	}
	large := x.large
	if used, ok := usedBodies.Get().(*[]byte); ok && cap(*used) >= size {
		x.large = *used
	} else {
		x.large = make([]byte, 0, size)
	}
	x.body = append(x.large[:0:size], x.body...)
	freeBody(large)
	return true
}

// freeBody frees the memory of a large body.
func freeBody(large []byte) {
	if large != nil {
		usedBodies.Put(&large)
	}
}

// A memoryBudget is the memory that large bodies share, with what is made of them.
type memoryBudget struct{ used atomic.Int64 }

// reserve has x hold three times size of the budget: for the body, its items and the answer. It reports whether there
// is as much.
func (x *exchange) reserve(b *memoryBudget, size int64) bool {
	more := 3*size - x.held
	x.held += more
	x.budget = b
	return b.used.Add(more) <= largeBodies
}

// jsonType is the one Content-Type of answers. It is shared by all of them, and never changed.
var jsonType = []string{"application/json"}

// lengthIsKnown is the size up to which net/http buffers an answer, and so tells the length itself.
const lengthIsKnown = 2048

// writeJSON is the one way out for a body.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	if len(body) > lengthIsKnown {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	w.Write(body) // an error means that the client has gone
}

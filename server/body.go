package server

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
)

const (
	maxBody     = 1 << 20   // of a client's request: 1,000 items of some 1,000 bytes
	smallBody   = 64 << 10  // what any request may take; larger ones share
	largeBodies = 256 << 20 // in all, so that many slow senders of large bodies can't fill the memory
)

// errBusy says that there is no room for one more large body.
var errBusy = errors.New("too many large requests at a time; send again in a moment, or fewer items at a time")

// readBody reads the whole body into x, or answers why it can't and gives false.
func (s *Server) readBody(x *exchange, w http.ResponseWriter, r *http.Request, most int64) bool {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		w.Header().Set("Accept-Encoding", "identity")
		s.fail(w, r, http.StatusUnsupportedMediaType, "encoding", "send the body as it is, without Content-Encoding")
		return false
	}
	if r.ContentLength > most {
		s.failTooLarge(w, r, most)
		return false
	}
	var err error
	x.body, err = s.readAll(x.body[:0], http.MaxBytesReader(w, r.Body, most), int(r.ContentLength))
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case err == errBusy:
		closeAfter(w, r) // what is left of the body is not worth reading
		s.failBusy(w, r, err.Error())
	case errors.As(err, &tooLarge):
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

// readAll is io.ReadAll into memory that is there already, and into more only as long as there is room for it. The size
// to expect is a hint.
func (s *Server) readAll(dst []byte, r io.Reader, expect int) ([]byte, error) {
	var large int64
	defer func() { s.bodies.Add(-large) }()
	for {
		if len(dst) == cap(dst) {
			size := max(4<<10, 2*cap(dst), expect+1) // one more, to read the end into
			if size > smallBody {
				more := int64(size) - large
				large += more
				if s.bodies.Add(more) > largeBodies {
					return dst, errBusy
				}
			}
			dst = append(make([]byte, 0, size), dst...)
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

// writeJSON is the one way out for a body.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body) // an error means that the client has gone
}

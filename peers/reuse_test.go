package peers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"weir/limits"
	"weir/limits/wire"
)

// A hasty transport answers before it has read the message, of which it keeps the body.
type hasty struct {
	bodies []io.Reader
	read   bool           // it reads the message before it answers
	memory map[*byte]bool // of those that it has read
}

// memoryOf returns where a message is.
func memoryOf(b *body) (at *byte) {
	b.WriteTo(writer(func(p []byte) { at = &p[0] }))
	b.Seek(0, io.SeekStart)
	return at
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func (h *hasty) RoundTrip(r *http.Request) (*http.Response, error) {
	text := []byte(nil)
	if h.read {
		h.memory[memoryOf(r.Body.(*body))] = true
		text, _ = io.ReadAll(struct{ io.Reader }{r.Body})
	}
	h.bodies = append(h.bodies, io.MultiReader(bytes.NewReader(text), r.Body))
	answer := wire.AppendResults(nil, []limits.Result{{Status: limits.StatusOK}})
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(answer)),
	}, nil
}

// TestTextsAreUsedAgain: the memory of a message may become that of another once the message is not read any more, and
// not before.
func TestTextsAreUsedAgain(t *testing.T) {
	for _, read := range []bool{false, true} {
		transport := &hasty{read: read, memory: map[*byte]bool{}}
		s := New(Options{Transport: func(string, http.RoundTripper) http.RoundTripper { return transport }})
		defer s.Close()
		s.Update("self:1", []Member{{Name: "self:1"}, {Name: "peer:1"}})
		var want [][]byte
		for i := range 50 {
			item := group(50)[i : i+1]
			want = append(want, wire.AppendRequests(nil, item))
			if _, err := s.View().peer("peer:1").Check(context.Background(), item, true); err != nil {
				t.Fatal(err)
			}
		}
		for i, body := range transport.bodies {
			if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, want[i]) {
				t.Fatalf("message %d became %s, %v", i, got, err)
			}
		}
		if distinct := len(transport.memory); read && distinct > 40 {
			t.Errorf("%d messages of 50 had memory of their own", distinct)
		}
	}
}

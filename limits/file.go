package limits

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc64"
	"io"

	"github.com/go-json-experiment/json"

	"weir/limits/wire"
)

// fileVersion grows when files that older versions wrote can't be read any more.
const fileVersion = 1

// A fileHead is the first line of what Save writes. A state a line follows, and a fileEnd.
type fileHead struct {
	Version int `json:"weir_limits"`
}

// A fileEnd is the last line.
type fileEnd struct {
	States int    `json:"states"`
	Sum    uint64 `json:"crc64,string"` // ECMA, of all lines before
}

// Save writes all that is remembered, for [Limiter.Load], and returns the number of limits. Requests are decided
// meanwhile, and what they change is in it or not. Limits that are whole again are not. The error is w's.
func (l *Limiter) Save(w io.Writer) (states int, err error) {
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	if err := writeLine(out, fileHead{fileVersion}); err != nil {
		return 0, err
	}
	for i := range l.shards {
		n, err := l.saveShard(out, &l.shards[i])
		if states += n; err != nil {
			return states, err
		}
	}
	if err := out.Flush(); err != nil { // into sum, too
		return states, err
	}
	return states, writeLine(w, fileEnd{states, sum.Sum64()})
}

func (l *Limiter) saveShard(w io.Writer, s *shard) (states int, err error) {
	s.mu.Lock()
	now := l.now()
	all := make([]wire.KeyedState, 0, s.expiries.size)
	for _, held := range s.states.inOrder() { // the least recently used first, as they are to be put again
		var n wire.KeyedState
		if n.Set(held.State, now); n.Used != 0 || n.Rest != 0 {
			n.Key = wire.KeyOf(held.id())
			all = append(all, n)
		}
	}
	s.mu.Unlock()
	var line []byte
	for i := range all {
		if line, err = wire.AppendMessage(line[:0], &all[i]); err != nil {
			return i, err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return i, err
		}
	}
	return len(all), nil
}

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}

// errDamaged is the error for anything but what Save writes.
var errDamaged = errors.New("limits: this is not what Save has written: it has been changed, or is not whole")

// Load adds what Save wrote to what is remembered, and returns the number of limits. The time since then has passed for
// them, by the clock of the machine; those that are whole again by now are left out. If r has been changed or is not
// complete it returns an error, and nothing is added.
func (l *Limiter) Load(r io.ReadSeeker) (states int, err error) {
	if err := readFile(r, func(*wire.KeyedState) error { return nil }); err != nil {
		return 0, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	err = readFile(r, func(n *wire.KeyedState) error {
		if state, _ := n.State(); !state.Whole(l.now()) {
			l.Put(n.AppendID(nil), state)
			states++
		}
		return nil
	})
	return states, err
}

// readFile calls each with the states of a file one by one, and checks the file.
func readFile(r io.Reader, each func(*wire.KeyedState) error) error {
	table, sum := crc64.MakeTable(crc64.ECMA), uint64(0)
	lines := bufio.NewReaderSize(r, 64<<10)
	for count := -1; ; count++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return errDamaged
		}
		if err != nil {
			return err
		}
		var end fileEnd
		if json.Unmarshal(line, &end, json.RejectUnknownMembers(true)) == nil && count >= 0 {
			if _, err := lines.ReadByte(); end != (fileEnd{count, sum}) || err != io.EOF {
				return errDamaged
			}
			return nil
		}
		sum = crc64.Update(sum, table, line)
		if count < 0 {
			err = readHead(line)
		} else {
			err = readSaved(line, each)
		}
		if err != nil {
			return err
		}
	}
}

func readHead(line []byte) error {
	var head fileHead
	if err := json.Unmarshal(line, &head); err != nil || head.Version == 0 {
		return errDamaged
	}
	if head.Version > fileVersion {
		return fmt.Errorf("limits: written by a newer version (%d)", head.Version)
	}
	return nil
}

func readSaved(line []byte, each func(*wire.KeyedState) error) error {
	var n wire.KeyedState
	if err := wire.Unmarshal(line, &n); err != nil {
		return errDamaged
	}
	if _, sane := n.State(); !sane || !n.Valid() {
		return errDamaged
	}
	return each(&n)
}

package wire

import (
	"errors"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/limits/bucket"
)

// library reads text into a value by its tags, as the JSON library does, but refuses null, and numbers that are not
// plain: what this package is to do by its tables.
func library(text []byte, value any) error {
	return json.Unmarshal(text, value, json.WithUnmarshalers(json.JoinUnmarshalers(
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ any) error {
			if d.PeekKind() == 'n' {
				return errors.New("null")
			}
			return errors.ErrUnsupported
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, n *int64) (err error) {
			token, err := d.ReadValue()
			if err != nil {
				return err
			}
			if *n, err = strconv.ParseInt(string(token), 10, 64); err == nil && strconv.FormatInt(*n, 10) != string(token) {
				err = errors.New("not plain")
			}
			return err
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, a *named) error {
			token, err := d.ReadToken()
			switch n, _ := strconv.ParseInt(token.String(), 10, 64); {
			case err != nil:
				return err
			case token.Kind() == '"':
				known := map[string]named{"TOKEN_BUCKET": 0, "LEAKY_BUCKET": 1, "SLIDING_WINDOW": 2}
				var ok bool
				if *a, ok = known[token.String()]; !ok {
					*a = 255
				}
			case token.Kind() != '0' || strconv.FormatInt(n, 10) != token.String():
				return errors.New("not plain")
			case n < 0 || n > 2:
				*a = 255
			default:
				*a = named(n)
			}
			return nil
		}),
	)))
}

// A named is an algorithm that may be named.
type named bucket.Algorithm

// libraryResults reads a message of results.
func libraryResults(text []byte) (results []bucket.Result, ok bool) {
	var message struct {
		All []struct {
			Status     *string `json:"status"`
			Limit      int64   `json:"limit"`
			Remaining  int64   `json:"remaining"`
			ResetTime  int64   `json:"reset_time"`
			RetryAfter int64   `json:"retry_after"`
			Error      string  `json:"error"`
			Metadata   struct {
				Owner    string `json:"owner"`
				Degraded string `json:"degraded"`
				Reason   string `json:"reason"`
				Source   string `json:"source"`
			} `json:"metadata"`
			State *struct {
				Start     int64 `json:"start"`
				Epoch     int64 `json:"epoch"`
				Version   int64 `json:"version"`
				Acked     int64 `json:"acked"`
				Now       int64 `json:"now"`
				Algorithm named `json:"algorithm"`
				Limit     int64 `json:"limit"`
				Duration  int64 `json:"duration"`
				Age       int64 `json:"age"`
				Used      int64 `json:"used"`
				Rest      int64 `json:"rest"`
			} `json:"state"`
		} `json:"rate_limits"`
	}
	if err := library(text, &message); err != nil || len(message.All) > MaxItems {
		return nil, false
	}
	for _, m := range message.All {
		r := bucket.Result{Limit: m.Limit, Remaining: m.Remaining, ResetTime: m.ResetTime, RetryAfter: m.RetryAfter,
			Error:    m.Error,
			Metadata: bucket.Metadata(m.Metadata)}
		if m.Status != nil {
			statuses := map[string]bucket.Status{"ERROR": bucket.StatusError, "OK": bucket.StatusOK,
				"OVER_LIMIT": bucket.StatusOverLimit}
			if r.Status, ok = statuses[*m.Status]; !ok {
				return nil, false
			}
		}
		if n := m.State; n != nil {
			r.State = &bucket.Snapshot{Start: n.Start, Epoch: n.Epoch, Version: n.Version, Acked: n.Acked, Now: n.Now,
				Algorithm: bucket.Algorithm(n.Algorithm), Limit: n.Limit, Duration: n.Duration, Age: n.Age, Used: n.Used,
				Rest: n.Rest}
		}
		results = append(results, r)
	}
	return results, true
}

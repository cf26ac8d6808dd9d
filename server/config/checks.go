package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/limits/wire"
	"weir/peers/discovery"
)

// checks are by the kinds of values that Config names. Each returns what a value must be, if this one isn't.
var checks = map[string]func(text string) error{
	"address":   checkAddress,
	"reachable": checkReachable,
	"nodes":     checkNodes,
	"name":      checkName,
	"host":      checkHost,
	"secrets":   checkSecrets,
	"file":      checkFile,
	"bool":      checkBool,
	"fraction":  checkFraction,
	"count":     wholeTo(math.MaxInt32),
	"batch":     wholeTo(wire.MaxItems),
	"span":      atLeast(0),
	"positive":  atLeast(1),
	"interval":  atLeast(10 * time.Millisecond),
	"refresh":   atLeast(100 * time.Millisecond),
	"policy":    oneOf("local", "open", "closed"),
	"level":     checkLevel,
	"format":    oneOf("json", "console"),
}

// unless returns an error with a message unless all is well.
func unless(well bool, message string) error {
	if well {
		return nil
	}
	return errors.New(message)
}

// wholeTo checks for a whole number from 1 to most.
func wholeTo(most int64) func(string) error {
	return func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		return unless(err == nil && 1 <= n && n <= most, fmt.Sprint("must be a whole number from 1 to ", most))
	}
}

// atLeast checks for a length of time that time.ParseDuration reads.
func atLeast(least time.Duration) func(string) error {
	message := "must be a length of time with its unit, such as 500ms or 10s"
	if least > 1 {
		message += ", and at least " + least.String()
	}
	return func(text string) error {
		d, err := time.ParseDuration(text)
		return unless(err == nil && d >= least, message)
	}
}

// oneOf checks for one of some words.
func oneOf(words ...string) func(string) error {
	last := len(words) - 1
	message := "must be " + strings.Join(words[:last], ", ") + " or " + words[last]
	return func(text string) error { return unless(slices.Contains(words, text), message) }
}

// checkLevel takes the words in upper case, too.
func checkLevel(text string) error {
	return oneOf("debug", "info", "warn", "error")(strings.ToLower(text))
}

func checkBool(text string) error {
	_, err := strconv.ParseBool(text)
	return unless(err == nil, "must be true or false")
}

func checkFraction(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	return unless(err == nil && v >= 0 && v <= 1, "must be a number from 0 to 1, such as 0.01")
}

// checkAddress takes host:port, whether the host exists or not. The host may be empty, the port may be 0.
func checkAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return errors.New("must be host:port, such as 10.0.0.3:8080 or :8080")
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return unless(err == nil, "the port must be a number from 0 to 65535")
}

// checkReachable takes an address at which others can reach this node, whether the host exists or not.
func checkReachable(text string) error {
	if err := checkAddress(text); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(text)
	n, _ := strconv.Atoi(port)
	return unless(host != "" && !net.ParseIP(host).IsUnspecified() && n != 0,
		"must be an address at which others can reach this node, such as 10.0.0.3:8080")
}

func checkNodes(text string) error {
	members, err := discovery.ParseList(text)
	if err != nil {
		return err
	}
	return unless(len(members) > 0, "lists no node")
}

// checkName takes what could be looked up, whether it exists or not.
func checkName(text string) error {
	return unless(isName(strings.TrimSuffix(text, ".")), "must be a DNS name, such as _weir._tcp.example.org")
}

func isName(s string) bool {
	odd := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r))
	}
	return s != "" && len(s) < 254 && !strings.ContainsFunc(s, odd) && !strings.Contains(s, "..") && s[0] != '.'
}

// checkHost takes a host or host:port, whether a server answers there or not.
func checkHost(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), "53"
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return unless(err == nil && (net.ParseIP(host) != nil || isName(host)),
		"must be a host or host:port, such as 10.0.0.2 or 127.0.0.1:8600")
}

// checkSecrets takes one or two that may stand in a header.
func checkSecrets(text string) error {
	list := splitSecrets(text)
	well := len(list) <= 2
	for _, secret := range list {
		odd := strings.ContainsFunc(secret, func(r rune) bool { return r < '!' || r > '~' })
		well = well && secret != "" && !odd
	}
	return unless(well, "must be one secret, or two separated by a comma, of visible ASCII")
}

// checkFile takes the path of a file that could be written.
func checkFile(text string) error {
	switch info, err := os.Stat(filepath.Dir(text)); {
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("must be in a directory")
	}
	info, err := os.Stat(text)
	return unless(err != nil || info.Mode().IsRegular(), "must be a file")
}

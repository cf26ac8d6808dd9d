package limits_test

import (
	"fmt"
	"time"

	"weir/limits"
)

// fixed is a clock for examples, which must print the same every day. Programs use time.Now.
func fixed() time.Time { return time.Date(2026, time.January, 31, 12, 0, 0, 0, time.UTC) }

// A program limits its own work in three lines.
func Example() {
	limiter := limits.New(100_000, fixed) // fixed is for this example; yours is time.Now
	mail := limiter.Rate("mail", 10, time.Second, 20)
	if mail.Allow("account=123") {
		fmt.Println("sent")
	}
	// Output: sent
}

func ExampleLimiter_Rate() {
	limiter := limits.New(100_000, fixed) // fixed is for this example; yours is time.Now

	// Each account sends at most 10 mails per second, and 3 at once after a pause.
	mail := limiter.Rate("mail", 10, time.Second, 3)
	for i := range 4 {
		fmt.Println(i, mail.Allow("account=123"))
	}
	fmt.Println("another account:", mail.Allow("account=456"))
	// Output:
	// 0 true
	// 1 true
	// 2 true
	// 3 false
	// another account: true
}

func ExampleLimiter_Check() {
	limiter := limits.New(100_000, fixed) // fixed is for this example; yours is time.Now

	// 1,000 reports per calendar month, in the customer's time zone.
	report := limits.Request{
		Name:      "reports",
		UniqueKey: "customer=123",
		Hits:      999,
		Limit:     1000,
		Duration:  4, // month
		Behavior:  limits.DurationIsGregorian,
		TimeZone:  "Europe/Berlin",
	}
	fmt.Println(limiter.Check(report).Status)

	report.Hits = 2
	result := limiter.Check(report)
	fmt.Println(result.Status, "with", result.Remaining, "left")
	fmt.Println("again in", time.Duration(result.RetryAfter)*time.Millisecond)
	fmt.Println("at", time.UnixMilli(result.ResetTime).UTC().Format(time.RFC3339))
	// Output:
	// OK
	// OVER_LIMIT with 1 left
	// again in 11h0m0s
	// at 2026-01-31T23:00:00Z
}

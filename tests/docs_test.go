package tests

import (
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The tests of this file keep the documents true: what they name must exist, and what operators need must be in them.

// prose returns d without its fenced blocks.
func (d document) prose() string { return fence.ReplaceAllString(d.text, "") }

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	code         = regexp.MustCompile("`([^`\n]+)`")
)

// anchors returns what a link may have behind #, as GitHub makes it of headings.
func (d document) anchors() (list []string) {
	for _, h := range heading.FindAllStringSubmatch(d.prose(), -1) {
		title := markdownLink.ReplaceAllString(strings.ReplaceAll(h[1], "[", ""), "")
		list = append(list, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title))
	}
	return list
}

// TestDocumentedLinks follows every link of the documents to a file or a heading.
func TestDocumentedLinks(t *testing.T) {
	for _, d := range documents(t) {
		for _, l := range markdownLink.FindAllStringSubmatch(d.prose(), -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			name, anchor, _ := strings.Cut(l[1], "#")
			target := d.name
			if name != "" {
				target = path.Join(path.Dir(d.name), name)
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s links to %s: %v", d.name, l[1], err)
			} else if anchor != "" && !slices.Contains(read(t, target).anchors(), anchor) {
				t.Errorf("%s links to %s: no such heading", d.name, l[1])
			}
		}
	}
}

// TestDocumentedPaths looks for the files and directories that the documents name.
func TestDocumentedPaths(t *testing.T) {
	inTree := regexp.MustCompile(`^\.?[a-z]+/[\w./-]+$`)
	for _, d := range documents(t) {
		for _, c := range code.FindAllStringSubmatch(d.prose(), -1) {
			if !inTree.MatchString(c[1]) || strings.HasPrefix(c[1], "weir/") ||
				strings.Contains(c[1], ".Test") { // which TestDocumentedTests looks for
				continue
			}
			_, fromRoot := os.Stat(filepath.Join("..", c[1]))
			_, fromHere := os.Stat(filepath.Join("..", path.Dir(d.name), c[1]))
			if fromRoot != nil && fromHere != nil {
				t.Errorf("%s names %s: %v", d.name, c[1], fromRoot)
			}
		}
	}
}

// row matches a row of a table, with the code at the beginning of its first cell.
var row = regexp.MustCompile("(?m)^\\| (`.*?`) \\| (.*) \\|$")

// section returns the part of d below a heading, up to the next one.
func (d document) section(t *testing.T, title string) string {
	t.Helper()
	_, after, found := strings.Cut(d.text, "\n## "+title+"\n")
	if !found {
		t.Fatalf("%s has no section %q", d.name, title)
	}
	before, _, _ := strings.Cut(after, "\n## ")
	return before
}

// printedVariable matches a line of weir -h, with the default if there is one.
var printedVariable = regexp.MustCompile(`(?m)^  (WEIR_\w+) +.*?(?: \(default ([^)]+)\))?$`)

// TestDocumentedVariables compares the table of variables with what weir -h prints. No document may name another one.
func TestDocumentedVariables(t *testing.T) {
	help, err := command(t.Context(), t, nil, "-h").Output()
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]string{}
	for _, v := range printedVariable.FindAllStringSubmatch(string(help), -1) {
		defaults[v[1]] = v[2]
	}
	var documented []string
	for _, r := range row.FindAllStringSubmatch(read(t, "docs/operations.md").section(t, "Environment variables"), -1) {
		name := strings.Trim(r[1], "`")
		documented = append(documented, name)
		printed, _, _ := strings.Cut(r[2], " | ")
		want, known := defaults[name]
		if !known || want != "" && printed != "`"+want+"`" || want == "" && strings.Contains(printed, "`") {
			t.Errorf("%s is documented with the default %s; weir -h says %q", name, printed, want)
		}
	}
	for name := range defaults {
		if !slices.Contains(documented, name) {
			t.Errorf("the table lacks %s", name)
		}
	}
	if len(documented) != len(defaults) || len(defaults) < 20 {
		t.Errorf("%d variables are documented, weir -h lists %d", len(documented), len(defaults))
	}
	for _, d := range documents(t) {
		for _, name := range regexp.MustCompile(`\bWEIR_[A-Z0-9_]*[A-Z0-9]\b`).FindAllString(d.text, -1) {
			if _, known := defaults[name]; !known && name != "WEIR_CONFORMANCE_FILE" {
				t.Errorf("%s names %s, which there is not", d.name, name)
			}
		}
	}
}

// series matches a metric with its labels, as a node shows it or as the documents name it.
var series = regexp.MustCompile(`\b(weir_[a-z_]+[a-z])(?:\{([^}]*)\})?`)

// ofHistogram matches what a histogram's series have behind its name.
var ofHistogram = regexp.MustCompile(`_(bucket|sum|count)$`)

// TestDocumentedMetrics compares the metrics of a node in a cluster, their labels and the labels' values, with the
// documents.
func TestDocumentedMetrics(t *testing.T) {
	c := startCluster(t, 2)
	page := string(c.nodes[0].get(t, "/metrics", http.StatusOK))
	families := map[string]map[string]bool{}
	for _, f := range regexp.MustCompile(`(?m)^# TYPE (weir_\w+) `).FindAllStringSubmatch(page, -1) {
		families[f[1]] = map[string]bool{}
	}
	operations := read(t, "docs/operations.md")
	for line := range strings.Lines(page) {
		s := series.FindStringSubmatch(line)
		if s == nil || line[0] == '#' {
			continue
		}
		name := s[1]
		if families[name] == nil {
			name = ofHistogram.ReplaceAllString(name, "")
		}
		for _, l := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(s[2], -1) {
			if l[1] == "le" {
				continue
			}
			families[name][l[1]] = true
			if l[1] != "peer" && l[1] != "version" && l[1] != "goversion" && !strings.Contains(operations.text, "`"+l[2]+"`") {
				t.Errorf("%s does not say what %s of %s means", operations.name, l[0], name)
			}
		}
	}
	documented := map[string]string{}
	for _, r := range row.FindAllStringSubmatch(operations.section(t, "Metrics"), -1) {
		for _, s := range series.FindAllStringSubmatch(r[1], -1) {
			documented[s[1]] = s[2]
		}
	}
	for name, labels := range families {
		got, there := documented[name]
		if want := strings.Join(slices.Sorted(maps.Keys(labels)), ","); !there || got != want {
			t.Errorf("%s has %s with the labels {%s}; documented are {%s}", c.nodes[0].name, name, want, got)
		}
	}
	for _, d := range documents(t) {
		for _, s := range series.FindAllStringSubmatch(d.text, -1) {
			if families[s[1]] == nil && families[ofHistogram.ReplaceAllString(s[1], "")] == nil {
				t.Errorf("%s names %s, which there is not", d.name, s[1])
			}
		}
	}
}

// TestDocumentedWords looks for each word that metadata.degraded may hold.
func TestDocumentedWords(t *testing.T) {
	var documented []string
	for _, r := range row.FindAllStringSubmatch(read(t, "docs/cluster.md").text, -1) {
		documented = append(documented, strings.Trim(r[1], "`"))
	}
	for _, word := range degradedWords {
		if !slices.Contains(documented, word) {
			t.Errorf("docs/cluster.md lacks %s", word)
		}
	}
}

// sources returns the text of all files of Go in the repository for which is is true, by their names.
func sources(t *testing.T, is func(name string) bool) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(file), "../")
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || !is(name) {
			return err
		}
		text, err := os.ReadFile(file)
		texts[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// TestDocumentedTests looks for the tests that the documents name as package.TestName.
func TestDocumentedTests(t *testing.T) {
	tests := sources(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	for _, d := range documents(t) {
		for _, c := range code.FindAllStringSubmatch(d.prose(), -1) {
			room, test, is := strings.Cut(c[1], ".Test")
			if !is || strings.ContainsAny(test, " (.") {
				continue
			}
			found := false
			for name, text := range tests {
				found = found || path.Dir(name) == room && strings.Contains(text, "\nfunc Test"+test+"(t *testing.T)")
			}
			if !found {
				t.Errorf("%s names %s, which there is not", d.name, c[1])
			}
		}
	}
}

// TestDocumentedLogLines compares the table of messages with those in the sources.
func TestDocumentedLogLines(t *testing.T) {
	var documented []string
	for _, r := range row.FindAllStringSubmatch(read(t, "docs/operations.md").section(t, "Log lines"), -1) {
		documented = append(documented, strings.Trim(r[1], "`"))
	}
	written := map[string]bool{}
	message := regexp.MustCompile(`\bMsg\((?:fmt\.Sprint\()?"([^"]+)"`)
	for _, text := range sources(t, func(name string) bool {
		return !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "tests/")
	}) {
		for _, m := range message.FindAllStringSubmatch(text, -1) {
			written[strings.TrimSuffix(m[1], ": ")] = true
		}
	}
	for m := range written {
		if !slices.Contains(documented, m) {
			t.Errorf("the table lacks %q", m)
		}
	}
	for _, m := range documented {
		if !written[m] {
			t.Errorf("the table has %q, which is never logged", m)
		}
	}
}

// TestDocumentedPrograms runs each block of Go in the documents. What it prints must equal the block of text behind it.
func TestDocumentedPrograms(t *testing.T) {
	for _, d := range documents(t) {
		for _, b := range d.blocks() {
			if b.language != "go" {
				continue
			}
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "main.go")
				if err := os.WriteFile(file, []byte(wholeProgram(b.text)), 0o600); err != nil {
					t.Fatal(err)
				}
				run := exec.CommandContext(t.Context(), "go", "run", "-buildvcs=false", file)
				run.Dir = ".."
				got, err := run.CombinedOutput()
				want := ""
				if b.next != nil && b.next.language == "text" {
					want = b.next.text
				}
				if err != nil || string(got) != want {
					t.Errorf("%v\n%s\nprints\n%swant\n%s", err, b.text, got, want)
				}
			})
		}
	}
}

// wholeProgram makes a program of some lines of Go, unless they are one.
func wholeProgram(lines string) string {
	if strings.HasPrefix(lines, "package ") {
		return lines
	}
	head := "package main\n\n"
	for _, name := range []string{"bytes", "context", "fmt", "os", "time", "weir/limits"} {
		if strings.Contains(lines, path.Base(name)+".") {
			head += "import \"" + name + "\"\n"
		}
	}
	return head + "\nfunc main() {\n" + lines + "}\n"
}

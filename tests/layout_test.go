package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// mayImport holds, for each package of the module, the others that it may import: those below it, so that imports go
// one way. A new package needs a place here. Some of the packages may not be there.
var mayImport = map[string][]string{
	".":               {"server", "server/config", "server/node"},
	"server/config":   {"limits", "limits/wire", "peers", "peers/discovery", "server", "server/node"},
	"server":          {"limits", "limits/bucket", "limits/wire", "peers", "server/node", "static"},
	"server/node":     {"global", "limits", "limits/bucket", "limits/wire", "peers", "peers/discovery"},
	"global":          {"limits", "limits/bucket", "limits/wire"},
	"peers":           {"batching", "limits", "limits/bucket", "limits/wire", "peers/discovery", "ring"},
	"peers/discovery": {},
	"limits":          {"limits/bucket", "limits/wire"},
	"limits/wire":     {"limits/bucket"},
	"limits/bucket":   {},
	"batching":        {},
	"ring":            {},
	"static":          {},

	"tests/chaos":      {"tests/dnstest"},
	"tests/dnstest":    {},
	"tests/load":       {},
	"tests/load/suite": {},
}

// hasDoors are the packages that may serve HTTP. All others may call at most.
var hasDoors = []string{"server", "tests/load", "tests/load/suite"}

// doorWords are the names of net/http's server.
var doorWords = []string{"Server", "Handler", "HandlerFunc", "ResponseWriter", "ListenAndServe", "Serve"}

// TestLayout: imports go one way, and what is below package server needs no HTTP server.
func TestLayout(t *testing.T) {
	wrong, packages := violations(t, os.DirFS(".."))
	for _, what := range wrong {
		t.Error(what)
	}
	if packages < 10 {
		t.Errorf("only %d packages were looked at", packages)
	}
}

// TestLayoutNotices breaks the layout in each way that there is.
func TestLayoutNotices(t *testing.T) {
	for _, test := range []struct{ file, source, wants string }{
		{"global/a.go", `import "weir/peers"`, "global/a.go: may not import peers"},
		{"limits/bucket/a.go", `import "weir/limits"`, "limits/bucket/a.go: may not import limits"},
		{"limits/wire/a.go", `import _ "weir/ring"`, "limits/wire/a.go: may not import ring"},
		{"util/a.go", ``, "util/a.go: the package has no place in the layout"},
		{"server/node/a.go", `import "net/http"; var x http.Handler`, "server/node/a.go: may not use http.Handler"},
		{"peers/a.go", `import web "net/http"; var x = web.Server{}`, "peers/a.go: may not use http.Server"},
		{"ring/a.go", `import . "net/http"; var x ResponseWriter`, "ring/a.go: may not import net/http with a dot"},
		{"server/node/a.go", `import "net/http"; var x http.Header`, ""},
		{"server/a.go", `import ("net/http"; "weir/server/node"); var x http.Handler`, ""},
		{"global/a_test.go", `import "weir/peers"`, ""}, // tests may have more
	} {
		files := fstest.MapFS{test.file: {Data: []byte("package x\n" + test.source)}}
		if got, _ := violations(t, files); strings.Join(got, "; ") != test.wants {
			t.Errorf("%s with %s: %q, want %q", test.file, test.source, got, test.wants)
		}
	}
}

// violations returns what is wrong with the packages of a module, and how many there are.
func violations(t *testing.T, module fs.FS) (wrong []string, packages int) {
	t.Helper()
	seen := map[string]bool{}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(name, "."):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(module, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			return err
		}
		seen[path.Dir(name)] = true
		for _, what := range wrongIn(file, path.Dir(name)) {
			wrong = append(wrong, name+": "+what)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return wrong, len(seen)
}

// wrongIn returns what is wrong with a file of a package.
func wrongIn(file *ast.File, pkg string) (wrong []string) {
	may, known := mayImport[pkg]
	if !known {
		wrong = append(wrong, "the package has no place in the layout")
	}
	for _, spec := range file.Imports {
		name, _ := strconv.Unquote(spec.Path.Value)
		if ours, is := strings.CutPrefix(name, "weir/"); is && !slices.Contains(may, ours) {
			wrong = append(wrong, "may not import "+ours)
		}
		if name == "net/http" && !slices.Contains(hasDoors, pkg) {
			wrong = append(wrong, doorsIn(file, spec)...)
		}
	}
	return wrong
}

// doorsIn returns what a file uses of net/http's server.
func doorsIn(file *ast.File, http *ast.ImportSpec) (wrong []string) {
	local := "http"
	if http.Name != nil {
		local = http.Name.Name
	}
	if local == "." {
		return []string{"may not import net/http with a dot"}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if use, ok := n.(*ast.SelectorExpr); ok && slices.Contains(doorWords, use.Sel.Name) {
			if of, ok := use.X.(*ast.Ident); ok && of.Name == local {
				wrong = append(wrong, fmt.Sprint("may not use http.", use.Sel.Name))
			}
		}
		return true
	})
	return wrong
}

package lint

import (
	"go/ast"
	"strings"
)

var lockedRule = rule{
	name: "a Locked function keeps the lock",
	reason: "only the function that locked unlocks: a function that is called with a lock and lets it go changes what its caller knows; " +
		"take work under the lock, do it without, and finish it under the lock again",
	check: perFile(func(s *source, found report) {
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || !strings.HasSuffix(f.Name.Name, "Locked") {
				continue
			}
			for n := range ast.Preorder(f.Body) {
				if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Unlock" || sel.Sel.Name == "RUnlock") {
					found(sel.Pos(), "%s unlocks", f.Name.Name)
				}
			}
		}
	}),
}

package lint

import (
	"go/ast"
	"strings"
)

var lockedRule = rule{
	name: "a Locked function keeps the lock",
	reason: "only the function that locked unlocks: a function that is called with a lock and lets it go changes what its caller knows; " +
		"take work under the lock, do it without, and finish it under the lock again",
	check: func(t *tree) []problem {
		var found []problem
		for s := range t.goFiles {
			for _, d := range s.syntax.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Body == nil || !strings.HasSuffix(f.Name.Name, "Locked") {
					continue
				}
				ast.Inspect(f.Body, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Unlock" || sel.Sel.Name == "RUnlock") {
						found = append(found, t.at(sel.Pos(), "%s unlocks", f.Name.Name))
					}
					return true
				})
			}
		}
		return found
	},
}

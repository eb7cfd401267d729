// Package report has the numbers of simulated runs and writes them: a table for a terminal, a page with
// plots, JSON fields and the last line.
//
//	table := report.Table{Scenario: "chat", Rows: []report.Row{{Policy: "price", Mean: report.Mean(results), Seeds: results}}}
//	table.Print(os.Stdout, true) // true adds decisions with their parts
//	fmt.Println(report.Judge([]report.Table{table}))
//
// A table compares every policy with the policy price. The oracle is left out, because no router knows
// what it knows.
//
// docs/simulate.md describes every column. Nothing fails and nothing is kept between calls.
package report

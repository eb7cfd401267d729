// Package reports sums what connectors report.
package reports

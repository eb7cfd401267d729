package report

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// Page returns an HTML page with the tables, a plot of each scenario and the sample of price's decisions.
// A plot has the mean time to the first token against the mean time between tokens, a point for each policy.
func Page(tables []Table) []byte {
	var b bytes.Buffer
	b.WriteString(`<!doctype html><meta charset="utf-8"><title>blockyard-lab simulate</title>
<style>body{font:14px system-ui;margin:2em auto;max-width:70em}table{border-collapse:collapse}td,th{padding:.1em .6em;text-align:right;border-bottom:1px solid #ddd}td:first-child{text-align:left}svg text{font-size:10px}.price{font-weight:bold}</style>
<h1>Policies by scenario</h1>
`)
	fmt.Fprintf(&b, "<p><code>%s</code></p>\n", html.EscapeString(Judge(tables).String()))
	for i := range tables {
		t := &tables[i]
		fmt.Fprintf(&b, "<h2>%s</h2><p>%s; %s</p>\n", html.EscapeString(t.Scenario), html.EscapeString(t.About), html.EscapeString(t.Limits.String()))
		plot(&b, t)
		b.WriteString("<table><tr><th>policy<th>TTFT ms<th>p99<th>TBT ms<th>p99<th>good/s<th>tokens/s<th>cached<th>device<th>host<th>disk<th>most<th>least<th>GB loaded<th>GB read<th>GB written<th>GB sent</tr>\n")
		for _, row := range t.Rows {
			r := &row.Mean
			device, host, disk := r.Served.percent()
			class := ""
			if row.Policy == "price" {
				class = ` class="price"`
			}
			fmt.Fprintf(&b, "<tr%s><td>%s<td>%.0f<td>%.0f<td>%.1f<td>%.1f<td>%.2f<td>%.0f<td>%.0f %%<td>%.0f<td>%.0f<td>%.0f<td>%.2f<td>%.2f<td>%.1f<td>%.1f<td>%.1f<td>%.1f</tr>\n", class, html.EscapeString(row.Policy),
				r.TTFTMean, r.TTFTP99, r.TBTMean, r.TBTP99, r.Goodput, r.TokensPerSecond, 100*r.Served.Cached(), device, host, disk,
				r.Herd, r.Balance, r.Moved.HostToDevice/1e9, r.Moved.DiskRead/1e9, r.Moved.DiskWritten/1e9, r.Moved.Network/1e9)
		}
		b.WriteString("</table>\n")
		if price, ok := t.row("price"); ok {
			price.pageDecisions(&b)
		}
	}
	return b.Bytes()
}

// plot writes the plot of a scenario. Both axes are logarithmic.
func plot(b *bytes.Buffer, t *Table) {
	const width, height, edge = 640.0, 300.0, 40.0
	lowX, highX, lowY, highY := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, row := range t.Rows {
		x, y := row.Mean.TTFTMean, row.Mean.TBTMean
		if x <= 0 || y <= 0 {
			continue
		}
		lowX, highX, lowY, highY = min(lowX, x), max(highX, x), min(lowY, y), max(highY, y)
	}
	if highX == 0 {
		return
	}
	at := func(v, low, high, length float64) float64 {
		return edge + (length-2*edge)*math.Log(v/low*1.001)/math.Log(high/low*1.01)
	}
	fmt.Fprintf(b, `<svg width="%.0f" height="%.0f" role="img" aria-label="time to the first token and between tokens"><rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" fill="none" stroke="#bbb"/>`,
		width, height, edge/2, edge/2, width-edge, height-edge)
	for _, row := range t.Rows {
		x, y := row.Mean.TTFTMean, row.Mean.TBTMean
		if x <= 0 || y <= 0 {
			continue
		}
		px, py, colour := at(x, lowX, highX, width), height-at(y, lowY, highY, height), "#4477aa"
		if row.Policy == "price" {
			colour = "#cc3311"
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/><text x="%.1f" y="%.1f">%s</text>`, px, py, colour, px+6, py-3, html.EscapeString(row.Policy))
	}
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f">time to the first token, %.0f to %.0f ms</text><text x="4" y="12">time between tokens, %.1f to %.1f ms</text></svg>`+"\n",
		width/3, height-4, lowX, highX, lowY, highY)
}

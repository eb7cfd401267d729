package console

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"strings"
	"testing"
)

// colours are the variables of a theme.
type colours map[string]string

// themes returns the variables of each block of the style sheet that begins with a selector.
func themes(t *testing.T) (light, dark, darkByChoice colours) {
	t.Helper()
	text := string(pageFiles()["style.css"].body)
	variable := regexp.MustCompile(`--([a-z]+): (#[0-9a-f]+);`)
	block := func(selector string) colours {
		_, rest, ok := strings.Cut(text, selector+" {")
		body, _, _ := strings.Cut(rest, "}")
		all := make(colours)
		for _, m := range variable.FindAllStringSubmatch(body, -1) {
			all[m[1]] = m[2]
		}
		if !ok || len(all) == 0 {
			t.Fatalf("the style sheet has no colours in %s", selector)
		}
		return all
	}
	return block(":root"), block(`:root:not([data-theme="light"])`), block(`:root[data-theme="dark"]`)
}

// luminance returns the relative luminance of a colour by WCAG 2.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) == 4 {
		hex = "#" + strings.Repeat(hex[1:2], 2) + strings.Repeat(hex[2:3], 2) + strings.Repeat(hex[3:4], 2)
	}
	var rgb [3]int
	if _, err := fmt.Sscanf(hex, "#%02x%02x%02x", &rgb[0], &rgb[1], &rgb[2]); err != nil {
		t.Fatalf("colour %q: %v", hex, err)
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v := float64(rgb[i]) / 255
		if v <= 0.04045 {
			sum += weight * v / 12.92
		} else {
			sum += weight * math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return sum
}

// Text has a contrast of 4.5:1 at least, in both themes. The theme of the system and the chosen one
// are the same.
func TestColours(t *testing.T) {
	light, dark, darkByChoice := themes(t)
	if !maps.Equal(dark, darkByChoice) {
		t.Errorf("dark of the system %v, by choice %v", dark, darkByChoice)
	}
	for name, c := range map[string]colours{"light": light, "dark": dark} {
		for _, ink := range []string{"ink", "muted", "link", "ok", "warn", "bad", "off"} {
			for _, ground := range []string{"ground", "surface"} {
				a, b := luminance(t, c[ink]), luminance(t, c[ground])
				if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want 4.5", name, ink, ground, ratio)
				}
			}
		}
	}
}

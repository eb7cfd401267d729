package calibrate

import (
	"errors"
	"math"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

// normal is a system of normal equations: matrix times cells is right.
type normal struct {
	n      int
	matrix []float64 // n rows of n
	right  []float64
}

func newNormal(n int) *normal {
	return &normal{n: n, matrix: make([]float64, n*n), right: make([]float64, n)}
}

// add has a sum of shares of cells be value, with a weight.
func (m *normal) add(cells []int, shares []float64, weight, value float64) {
	for i, a := range cells {
		m.right[a] += weight * shares[i] * value
		for k, b := range cells {
			m.matrix[a*m.n+b] += weight * shares[i] * shares[k]
		}
	}
}

// bend has each cell be near the line through its neighbours, along each axis, and a little near the
// neighbours.
func (m *normal) bend(r *engine.Recording, weight float64) {
	axes := [][]float64{r.Tokens, r.Pairs, r.Context}
	strides := []int{len(r.Pairs) * len(r.Context), len(r.Context), 1}
	for cell := range m.n {
		for a, axis := range axes {
			i, stride := cell/strides[a]%len(axis), strides[a]
			if i+1 < len(axis) {
				m.add([]int{cell, cell + stride}, []float64{-1, 1}, level*weight, 0)
			}
			if i > 0 && i+1 < len(axis) {
				x := (axis[i] - axis[i-1]) / (axis[i+1] - axis[i-1])
				m.add([]int{cell - stride, cell, cell + stride}, []float64{x - 1, 1, -x}, smooth*weight, 0)
			}
		}
	}
}

// solve returns the cells, by Cholesky's decomposition.
func (m *normal) solve() ([]float64, error) {
	n, l := m.n, m.matrix
	for i := range n {
		for k := range i + 1 {
			sum := l[i*n+k]
			for j := range k {
				sum -= l[i*n+j] * l[k*n+j]
			}
			if k < i {
				l[i*n+k] = sum / l[k*n+k]
			} else if sum > 0 {
				l[i*n+i] = math.Sqrt(sum)
			} else {
				return nil, errors.New("recording: its steps do not determine a table")
			}
		}
	}
	x := m.right
	for i := range n {
		for j := range i {
			x[i] -= l[i*n+j] * x[j]
		}
		x[i] /= l[i*n+i]
	}
	for i := n - 1; i >= 0; i-- {
		for j := i + 1; j < n; j++ {
			x[i] -= l[j*n+i] * x[j]
		}
		x[i] /= l[i*n+i]
	}
	return x, nil
}

package routing

import "testing"

func TestSequence_comesOutEven(t *testing.T) {
	for _, n := range []int32{2, 3, 8, 32, 100} {
		s := NewSequence(12345)
		counts := make([]int, n)
		for i := 1; i <= 20_000; i++ {
			counts[Uniform(n, s.Next())]++
			for p, c := range counts {
				if d := float64(c) - float64(i)/float64(n); d > 6 || d < -6 {
					t.Fatalf("%d of %d choices of %d partitions fell on partition %d", c, i, n, p)
				}
			}
		}
	}
}

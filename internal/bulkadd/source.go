package bulkadd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Item is one piece of the stream.
type Item struct {
	// Number counts from 1: the line of the input, say.
	Number int64
	Data   []byte
}

// Source gives the items of a stream. Next returns io.EOF after the last one;
// the data of an item belongs to the caller.
type Source interface {
	Next() (Item, error)
}

// Split reads items that end with a delimiter. The delimiter is no part of the
// item; the last item need not have one.
type Split struct {
	// SkipEmpty leaves out items without a byte.
	SkipEmpty bool

	in        *bufio.Reader
	delimiter byte
	maxBytes  int
	number    int64
}

// NewSplit makes a Split. An item of more than maxBytes is an error.
func NewSplit(in io.Reader, delimiter byte, maxBytes int) *Split {
	return &Split{in: bufio.NewReaderSize(in, 256<<10), delimiter: delimiter, maxBytes: maxBytes}
}

// Next implements Source.
func (s *Split) Next() (Item, error) {
	for {
		data, err := s.read()
		if err != nil {
			return Item{}, err
		}
		s.number++
		if len(data) > 0 || !s.SkipEmpty {
			return Item{Number: s.number, Data: data}, nil
		}
	}
}

func (s *Split) read() ([]byte, error) {
	var data []byte
	for {
		part, err := s.in.ReadSlice(s.delimiter)
		if err == nil {
			part = part[:len(part)-1]
		}
		if len(data)+len(part) > s.maxBytes {
			return nil, fmt.Errorf("line %d of the input is longer than %d bytes", s.number+1, s.maxBytes)
		}
		switch {
		case err == nil && data == nil:
			return bytes.Clone(part), nil
		case err == nil:
			return append(data, part...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			data = append(data, part...)
		case errors.Is(err, io.EOF) && len(data)+len(part) > 0:
			return append(data, part...), nil
		default:
			return nil, err
		}
	}
}

// Strings is a Source of words that are there already.
func Strings(words []string) Source { return &list{words: words} }

type list struct {
	words []string
	next  int
}

func (l *list) Next() (Item, error) {
	if l.next == len(l.words) {
		return Item{}, io.EOF
	}
	l.next++
	return Item{Number: int64(l.next), Data: []byte(l.words[l.next-1])}, nil
}

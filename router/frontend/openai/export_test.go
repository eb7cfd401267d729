package openai

// Rest returns the bytes that were read and belong to no whole event.
func (s *Scanner) Rest() []byte { return s.buf[s.start:] }

// Package httpclient is an http.RoundTripper over a set of endpoints, with the
// balancing of package balance and the retries of package retry.
//
//	transport, err := httpclient.New(httpclient.Config{
//		Service:   "catalog",
//		Endpoints: []httpclient.Endpoint{{URL: "http://10.0.0.1:8080"}, {URL: "http://10.0.0.2:8080"}},
//	})
//	client := &http.Client{Transport: transport}
//	resp, err := client.Get("http://catalog/items/7")
//
// What is sent again: requests for which no connection could be had, that were
// never written or that the server refused (a NACK), whatever their method; and
// idempotent requests that broke off, took too long for one attempt, or were
// answered with 429, 502, 503 or 504. Never what the server or the caller marked as
// not retryable. Bodies are sent again only if that is possible: with GetBody,
// which http.NewRequest sets for buffers and strings, or while nothing was read.
//
// Servers answer with [Refuse] for a request that they did not begin, and mark with
// [MarkNever] an answer that no attempt can better.
package httpclient

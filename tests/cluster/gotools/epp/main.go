// Pick asks an endpoint picker (Envoy's ext_proc over gRPC), as a gateway would, where to send
// completion requests. Usage: pick ADDRESS COUNT MODEL. It prints how often which endpoint was
// chosen, as JSON; a refusal counts under its own words.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const destination = "x-gateway-destination-endpoint"

func main() {
	count, err := strconv.Atoi(os.Args[2])
	exitOn(err)
	// the picker makes a certificate of its own, as gateways expect
	security := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(security))
	exitOn(err)
	client := extproc.NewExternalProcessorClient(connection)
	picks := map[string]int{}
	for i := range count {
		picks[pick(client, os.Args[3], i)]++
	}
	exitOn(json.NewEncoder(os.Stdout).Encode(picks))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pick sends one request's headers and body and returns the endpoint that the answer names.
func pick(client extproc.ExternalProcessorClient, model string, number int) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		return err.Error()
	}
	for _, message := range request(model, number) {
		if err := stream.Send(message); err != nil {
			return err.Error()
		}
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err.Error()
		}
		if refusal := answer.GetImmediateResponse(); refusal != nil {
			return fmt.Sprintf("refused: %v %s", refusal.GetStatus().GetCode(), refusal.GetBody())
		}
		headers := answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
		for _, header := range headers {
			if header.GetHeader().GetKey() == destination {
				return string(header.GetHeader().GetRawValue())
			}
		}
	}
}

func request(model string, number int) []*extproc.ProcessingRequest {
	header := func(key, value string) *core.HeaderValue {
		return &core.HeaderValue{Key: key, RawValue: []byte(value)}
	}
	headers := &core.HeaderMap{Headers: []*core.HeaderValue{
		header(":method", "POST"),
		header(":path", "/v1/completions"),
		header("content-type", "application/json"),
		header("x-request-id", fmt.Sprint("request-", number)),
	}}
	body := fmt.Sprintf(`{"model":%q,"prompt":"%d hello","max_tokens":4}`, model, number)
	return []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extproc.HttpHeaders{Headers: headers},
		}},
		{Request: &extproc.ProcessingRequest_RequestBody{
			RequestBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: true},
		}},
	}
}

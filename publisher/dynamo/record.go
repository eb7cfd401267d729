package dynamo

import (
	"fmt"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// bucketSources is the part of the discovery directory that has publishers of events.
const bucketSources = "event_sources"

// endpointName is an endpoint in a record.
type endpointName struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Name      string `json:"name"`
}

// scope says what a record belongs to.
type scope struct {
	Kind     string       `json:"kind"`
	Endpoint endpointName `json:"endpoint"`
}

// workerName is a worker rank in a record.
type workerName struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
}

// sourceRecord says that a publisher speaks for a worker rank.
type sourceRecord struct {
	Type        string         `json:"type"`
	Scope       scope          `json:"scope"`
	Topic       string         `json:"topic"`
	PublisherID uint64         `json:"publisher_id"`
	Metadata    sourceMetadata `json:"metadata"`
}

type sourceMetadata struct {
	StateEndpoint endpointName    `json:"kv_state_endpoint"`
	Worker        workerName      `json:"worker"`
	PublisherID   uint64          `json:"publisher_id"`
	Recovery      *instanceRecord `json:"recovery_target,omitempty"`
}

// instanceRecord is an endpoint that a process serves.
type instanceRecord struct {
	Type       string    `json:"type,omitempty"`
	Component  string    `json:"component"`
	Endpoint   string    `json:"endpoint"`
	Namespace  string    `json:"namespace"`
	InstanceID uint64    `json:"instance_id"`
	Transport  transport `json:"transport"`
	Codec      string    `json:"request_plane_codec"`
}

type transport struct {
	TCP string `json:"tcp"`
}

// recordPath is the file of the record with a key.
func (o *Options) recordPath(bucket, key string) string {
	return filepath.Join(o.FileKV, "v1", bucket, escape(key, alphanumeric))
}

func (o *Options) sourceKey(publisher uint64) string {
	return fmt.Sprintf("namespace/%s/component/%s/endpoint/%s/topic/%s/%x",
		o.Namespace, o.Component, o.Endpoint, kvevent.Topic, publisher)
}

func (o *Options) endpoint() endpointName {
	return endpointName{Namespace: o.Namespace, Component: o.Component, Name: o.Endpoint}
}

// sourceRecord describes a publisher; target is nil for a live-only one.
func (o *Options) sourceRecord(publisher uint64, w kv.Worker, target *instanceRecord) sourceRecord {
	return sourceRecord{
		Type:        "EventSource",
		Scope:       scope{Kind: "endpoint", Endpoint: o.endpoint()},
		Topic:       kvevent.Topic,
		PublisherID: publisher,
		Metadata: sourceMetadata{
			StateEndpoint: o.endpoint(),
			Worker:        workerName{WorkerID: uint64(w.ID), Rank: uint32(w.Rank)},
			PublisherID:   publisher,
			Recovery:      target,
		},
	}
}

// queryEndpoint is the name of the endpoint that answers for a publisher.
func queryEndpoint(publisher uint64) string {
	return fmt.Sprintf("worker_kv_query_source_%x", publisher)
}

// queryPath is what a request for a publisher names.
func (o *Options) queryPath(instance, publisher uint64) string {
	return fmt.Sprintf("%x/%s/%s/%s", instance, o.Namespace, o.Component, queryEndpoint(publisher))
}

// recoveryTarget is where a publisher's recovery queries are answered.
func (o *Options) recoveryTarget(address string, instance, publisher uint64) *instanceRecord {
	return &instanceRecord{
		Component:  o.Component,
		Endpoint:   queryEndpoint(publisher),
		Namespace:  o.Namespace,
		InstanceID: instance,
		Transport:  transport{TCP: address + "/" + o.queryPath(instance, publisher)},
		Codec:      "msgpack",
	}
}

package main

import (
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const bodyBytes = 16 << 20

var statusOf = map[string]int{
	"invalid": 400, "unauthorized": 401, "not_found": 404, "conflict": 409, "gone": 410, "unsupported": 501, "unavailable": 503,
}

type server struct {
	backend *backend
	token   string
}

type call struct {
	reply   http.ResponseWriter
	request *http.Request
	body    []byte
	query   url.Values
	id, log string
}

// route is a method and a path, the parameters that it may be asked with, and what answers it.
type route struct {
	method  string
	path    *regexp.Regexp
	known   map[string]func(string) bool
	answers func(*server, *call) error
}

var (
	isBool  = func(text string) bool { return text == "true" || text == "false" }
	isWhole = regexp.MustCompile(`^\d{1,15}$`).MatchString
	isTime  = func(text string) bool { _, err := time.Parse(time.RFC3339Nano, text); return err == nil }
	isLabel = func(text string) bool { return strings.Contains(text, "=") }
	isSize  = func(text string) bool { return isWhole(text) && text != "0" && len(text) <= 5 }
	isWait  = regexp.MustCompile(`^((pending|creating|starting|running|stopping|stopped|failed|deleting|deleted)(,|$))+$`).MatchString
	isOut   = func(text string) bool { return text == "stdout" || text == "stderr" }
	isPage  = func(text string) bool { _, _, err := readCursor(text); return err == nil }
	isShort = func(text string) bool {
		seconds, err := strconv.ParseFloat(text, 64)
		return err == nil && seconds >= 0 && seconds <= 60
	}
	isID = func(text string) bool { return idForm.MatchString(text) }

	machinePath = `^/v1/machines/([^/]+)`
	routes      = []route{
		{"GET", regexp.MustCompile(`^/v1/info$`), nil, (*server).info},
		{"GET", regexp.MustCompile(`^/v1/machines$`), map[string]func(string) bool{
			"label": isLabel, "limit": isSize, "cursor": isPage, "include_deleted": isBool,
		}, (*server).list},
		{"GET", regexp.MustCompile(machinePath + `$`), map[string]func(string) bool{
			"wait": isWait, "since_version": isWhole, "timeout": isShort,
		}, (*server).get},
		{"PUT", regexp.MustCompile(machinePath + `$`), nil, (*server).put},
		{"DELETE", regexp.MustCompile(machinePath + `$`), map[string]func(string) bool{"force": isBool}, (*server).delete},
		{"POST", regexp.MustCompile(machinePath + `/stop$`), nil, (*server).stop},
		{"GET", regexp.MustCompile(machinePath + `/containers/([^/]+)/logs$`), map[string]func(string) bool{
			"follow": isBool, "previous": isBool, "tail": isWhole, "since": isTime, "stream": isOut, "limit_bytes": isWhole,
		}, (*server).logs},
	}
	requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
)

func (s *server) ServeHTTP(reply http.ResponseWriter, request *http.Request) {
	started := time.Now()
	// Without one, it gets one: by it a failure is found in the log.
	id := request.Header.Get("X-Request-Id")
	if !requestID.MatchString(id) {
		id = randomHex(8)
	}
	reply.Header().Set("X-Request-Id", id)
	if err := s.answer(reply, request); err != nil {
		refused := &apiError{code: "unavailable", message: err.Error()} // a full disk: nothing is known of what became of it
		errors.As(err, &refused)
		failure := map[string]string{"code": refused.code, "message": refused.message, "request_id": id}
		if refused.field != "" {
			failure["field"] = refused.field
		}
		send(reply, statusOf[refused.code], map[string]any{"error": failure})
	}
	log.Printf("%s %s %s %s", request.Method, request.URL.RequestURI(), time.Since(started).Round(time.Millisecond), id)
}

func (s *server) answer(reply http.ResponseWriter, request *http.Request) error {
	// Before anything else: strangers learn nothing, not even what is absent.
	if subtle.ConstantTimeCompare([]byte(request.Header.Get("Authorization")), []byte("Bearer "+s.token)) != 1 {
		return refuse("unauthorized", "", "the token is missing, or another one")
	}
	body, err := io.ReadAll(http.MaxBytesReader(reply, request.Body, bodyBytes))
	if err != nil {
		return refuse("invalid", "", "the body could not be read: %v", err)
	}
	query, err := url.ParseQuery(request.URL.RawQuery)
	if err != nil {
		return refuse("invalid", "", "the query could not be read: %v", err)
	}
	for _, each := range routes {
		match := each.path.FindStringSubmatch(request.URL.Path)
		if match == nil || each.method != request.Method {
			continue
		}
		call := &call{reply: reply, request: request, body: body, query: query}
		if len(match) > 1 && !isID(match[1]) {
			return refuse("invalid", "id", "%q is no id", match[1])
		}
		if match = append(match, "", ""); true {
			call.id, call.log = match[1], match[2]
		}
		for key, values := range query {
			if strings.HasPrefix(key, "x-") {
				continue
			}
			// A misspelt selector that is ignored lists, and so touches, other people's machines.
			isValid := each.known[key]
			if isValid == nil {
				return refuse("invalid", key, "the parameter %s is not known", key)
			}
			for _, text := range values {
				if !isValid(text) {
					return refuse("invalid", key, "%s=%s is not valid", key, text)
				}
			}
		}
		return each.answers(s, call)
	}
	// `not_found` would be proof that a machine is absent.
	return refuse("unsupported", "", "there is no %s %s", request.Method, request.URL.Path)
}

func send(reply http.ResponseWriter, status int, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	reply.Header().Set("Content-Type", "application/json")
	reply.WriteHeader(status)
	reply.Write(data)
	return nil
}

func (s *server) info(call *call) error {
	return send(call.reply, 200, map[string]any{
		"name": "go-sample", "version": "1", "api": "v1", "capabilities": []string{},
		"limits": map[string]int{"body_bytes": bodyBytes, "tombstone_seconds": int(tombstoneTime.Seconds())},
	})
}

func (s *server) list(call *call) error {
	b := s.backend
	b.lock.Lock()
	defer b.lock.Unlock()
	revision, after := b.revision, ""
	if text := call.query.Get("cursor"); text != "" {
		revision, after, _ = readCursor(text)
	}
	limit := int(numberOf(call.query, "limit", 500))
	ids := []string{}
	for id := range b.machines {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	items := []json.RawMessage{}
	page := map[string]any{"revision": revision}
	last := ""
	for _, id := range ids {
		m := b.machines[id]
		if id <= after || m.Shown.State == deleted && call.query.Get("include_deleted") != "true" || !carries(m, call.query["label"]) {
			continue
		}
		if len(items) == limit {
			page["next_cursor"] = cursor(revision, last)
			break
		}
		data, err := json.Marshal(m.Shown)
		if err != nil {
			return err
		}
		items, last = append(items, data), id
	}
	page["items"] = items
	return send(call.reply, 200, page)
}

func carries(m *machine, labels []string) bool {
	for _, each := range labels {
		key, value, _ := strings.Cut(each, "=")
		if found, ok := m.Shown.Labels[key]; !ok || found != value {
			return false
		}
	}
	return true
}

// A cursor is the first page's revision and the last id seen: ids come in order, so whatever comes and goes moves nothing.
func cursor(revision int64, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(revision, 10) + " " + id))
}

func readCursor(text string) (int64, string, error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, "", err
	}
	number, id, found := strings.Cut(string(data), " ")
	revision, err := strconv.ParseInt(number, 10, 64)
	if !found || err != nil {
		return 0, "", errors.New("no cursor")
	}
	return revision, id, nil
}

func numberOf(query url.Values, key string, otherwise float64) float64 {
	if number, err := strconv.ParseFloat(query.Get(key), 64); err == nil {
		return number
	}
	return otherwise
}

func (s *server) get(call *call) error {
	b := s.backend
	late := time.After(time.Duration(numberOf(call.query, "timeout", 0) * float64(time.Second)))
	wait := strings.Split(call.query.Get("wait"), ",")
	since := numberOf(call.query, "since_version", -1)
	isPlain := !call.query.Has("wait") && since < 0
	for isLate := false; ; {
		b.lock.Lock()
		m, err := b.find(call.id)
		if err != nil {
			b.lock.Unlock()
			return err
		}
		isSo := slices.Contains(wait, m.Shown.State) || since >= 0 && float64(m.Shown.Version) > since
		if isPlain || isSo || isLate {
			defer b.lock.Unlock()
			return send(call.reply, 200, m.Shown)
		}
		changed := b.changed
		b.lock.Unlock()
		select {
		case <-changed:
		case <-late:
			isLate = true
		case <-call.request.Context().Done():
			return nil
		}
	}
}

func (s *server) put(call *call) error {
	wanted, value, err := parseSpec(call.body)
	if err != nil {
		return err
	}
	s.backend.lock.Lock()
	defer s.backend.lock.Unlock()
	m, err := s.backend.create(call.id, wanted, value)
	if err != nil {
		return err
	}
	return send(call.reply, 201, m.Shown)
}

func (s *server) stop(call *call) error {
	var asked struct {
		GraceSeconds float64 `json:"grace_seconds"`
	}
	if _, err := parse(call.body, stopShape, &asked); err != nil {
		return err
	}
	s.backend.lock.Lock()
	defer s.backend.lock.Unlock()
	m, err := s.backend.find(call.id)
	if err != nil {
		return err
	}
	if err := s.backend.stop(m, asked.GraceSeconds); err != nil {
		return err
	}
	return send(call.reply, 202, m.Shown)
}

func (s *server) delete(call *call) error {
	s.backend.lock.Lock()
	defer s.backend.lock.Unlock()
	if err := s.backend.delete(call.id, call.query.Get("force") == "true"); err != nil {
		return err
	}
	call.reply.WriteHeader(202)
	return nil
}

func (s *server) logs(call *call) error {
	options := logOptions{
		follow: call.query.Get("follow") == "true", previous: call.query.Get("previous") == "true",
		stream: call.query.Get("stream"),
	}
	for key, into := range map[string]**int64{"tail": &options.tail, "limit_bytes": &options.limit} {
		if number := int64(numberOf(call.query, key, -1)); number >= 0 {
			*into = &number
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, call.query.Get("since")); err == nil {
		options.since = &at
	}
	s.backend.lock.Lock()
	m, folder, err := s.backend.logFolder(call.id, call.log, options.previous)
	s.backend.lock.Unlock()
	if err != nil {
		return err
	}
	call.reply.Header().Set("Content-Type", "text/x-cri-log")
	s.backend.sendLog(call.reply, call.request, m, folder, options)
	return nil
}

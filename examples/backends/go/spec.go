package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// apiError is what a request is refused with.
type apiError struct{ code, message, field string }

func (e *apiError) Error() string { return e.message }

func refuse(code, field, format string, values ...any) error {
	return &apiError{code, fmt.Sprintf(format, values...), field}
}

type spec struct {
	Labels            map[string]string `json:"labels"`
	Containers        []container       `json:"containers"`
	RestartPolicy     string            `json:"restart_policy"`
	TerminationGraceS *float64          `json:"termination_grace_s"`
	Backoff           *struct {
		InitialMs float64 `json:"initial_ms"`
		MaxMs     float64 `json:"max_ms"`
	} `json:"backoff"`
}

type container struct {
	Name       string
	Image      string
	Command    []string
	Args       []string
	WorkingDir string `json:"working_dir"`
	Env        []struct{ Name, Value string }
	Stop       struct{ Signal string }
}

// What a request may hold. An object has these fields (`!`: required), a list of its one entry, words are one of them.
type (
	object map[string]any
	list   [1]any
	words  []string
	test   func(any) bool
)

var (
	name   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	idForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,126}[a-z0-9])?$`)

	isText test = func(value any) bool {
		text, ok := value.(string)
		return ok && !strings.Contains(text, "\x00")
	}
	isName test = func(value any) bool { return isText(value) && name.MatchString(value.(string)) }
	isFlag test = func(value any) bool { _, ok := value.(bool); return ok }
	// JSON's numbers are float64 here, which hold every integer that the API allows.
	isNumber test = func(value any) bool {
		number, ok := value.(float64)
		return ok && number >= 0 && number < 1<<31
	}
	isCount test = func(value any) bool {
		number, ok := value.(float64)
		return ok && number >= 0 && number < 1<<53 && number == math.Trunc(number)
	}
	isInteger test = func(value any) bool {
		number, ok := value.(float64)
		return ok && number == math.Trunc(number)
	}
	isVariable test = func(value any) bool {
		return isText(value) && value != "" && !strings.Contains(value.(string), "=")
	}
	isSignal test = func(value any) bool { return isText(value) && signalNumber(value.(string)) > 0 }
	isLabels test = func(value any) bool {
		labels, ok := value.(map[string]any)
		for _, each := range labels {
			ok = ok && isText(each) && len(each.(string)) <= 4096
		}
		return ok && len(labels) <= 256
	}

	amounts = object{
		"cpu_millis": isCount, "memory_bytes": isCount, "ephemeral_bytes": isCount,
		"extended": list{object{"name!": isText, "count!": isCount}},
	}
	resources      = object{"requests": amounts, "limits": amounts}
	containerShape = object{
		"name!": isName, "image!": isText, "pull_policy": words{"always", "if_not_present", "never"},
		"command": list{isText}, "args": list{isText}, "working_dir": isText,
		"env":                 list{object{"name!": isVariable, "value!": isText}},
		"resources":           resources,
		"ports":               list{object{"name": isText, "port!": isCount, "protocol!": words{"tcp", "udp", "sctp"}}},
		"stop":                object{"signal": isSignal},
		"termination_message": object{"path!": isText, "policy!": words{"file", "fallback_to_logs"}},
	}
	specShape = object{
		"labels!": isLabels, "containers!": list{containerShape},
		"restart_policy!": words{"always", "on_failure", "never"}, "termination_grace_s": isCount, "resources": resources,
		"backoff": object{"initial_ms!": isCount, "max_ms!": isCount}, "priority": isInteger,
		// The host's own do for a process: what the API lets a backend without the capability leave aside.
		"hostname": isText, "domain": isText, "hostname_is_fqdn": isFlag,
		"dns": object{"nameservers!": list{isText}, "searches!": list{isText}, "options!": list{isText}},
	}
	stopShape = object{"grace_seconds!": isNumber}

	// Fields of the API that mean something this backend cannot do. What is asked for and cannot be kept is refused by its
	// name.
	needsMore = strings.Fields(`init_containers ephemeral_containers volumes mounts probes hooks security tty stdin
		stdin_once restart_rules host_port host_ip hosts registry_auth registry_auth_version instance_type runtime_handler
		address_tokens target cdi_devices env_tokens from_file`)
)

var signals = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15, "WINCH": 28}

// signalNumber reads 15, TERM, sigterm; 0 for what this backend cannot send.
func signalNumber(text string) syscall.Signal {
	if number, err := strconv.Atoi(text); err == nil && number > 0 && number < 65 {
		return syscall.Signal(number)
	}
	return syscall.Signal(signals[strings.TrimPrefix(strings.ToUpper(text), "SIG")])
}

// check refuses what is not of that shape. A field that is ignored would run something else than what was asked for.
func check(value, shape any, field string) error {
	join := func(name string) string { return strings.TrimPrefix(field+"."+name, ".") }
	bad := refuse("invalid", field, "%s is not valid", strings.TrimPrefix(field+" ", " "))
	switch shape := shape.(type) {
	case object:
		fields, ok := value.(map[string]any)
		if !ok {
			return refuse("invalid", field, "%s must be an object", field)
		}
		for key, part := range fields {
			known, ok := shape[key]
			if !ok {
				known, ok = shape[key+"!"]
			}
			isMore := slices.Contains(needsMore, key) || key == "restart_policy" && shape["image!"] != nil
			switch {
			case ok:
				if err := check(part, known, join(key)); err != nil {
					return err
				}
			case isMore && !isEmpty(part):
				missing := join(key)
				if _, isList := part.([]any); isList {
					missing += ".0"
				}
				return refuse("unsupported", missing, "this backend cannot do what %s asks for", missing)
			case !isMore && !strings.HasPrefix(key, "x-"):
				return refuse("invalid", join(key), "%s is not known", join(key))
			}
		}
		for key := range shape {
			if key, required := strings.CutSuffix(key, "!"); required && fields[key] == nil {
				return refuse("invalid", join(key), "%s is missing", join(key))
			}
		}
	case list:
		parts, ok := value.([]any)
		if !ok {
			return refuse("invalid", field, "%s must be an array", field)
		}
		for index, part := range parts {
			if err := check(part, shape[0], join(strconv.Itoa(index))); err != nil {
				return err
			}
		}
	case words:
		if text, ok := value.(string); !ok || !slices.Contains(shape, text) {
			return bad
		}
	case test:
		if !shape(value) {
			return bad
		}
	}
	return nil
}

func isEmpty(value any) bool {
	switch value := value.(type) {
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	}
	return value == nil || value == false
}

// parse reads a body of that shape into a value of its type, and gives what it was made of.
func parse(body []byte, shape object, into any) (any, error) {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return nil, refuse("invalid", "", "the body is not JSON: %v", err)
	}
	if err := check(value, shape, ""); err != nil {
		return nil, err
	}
	return value, json.NewDecoder(bytes.NewReader(body)).Decode(into)
}

func parseSpec(body []byte) (*spec, any, error) {
	var wanted spec
	value, err := parse(body, specShape, &wanted)
	switch {
	case err != nil:
		return nil, nil, err
	case len(wanted.Containers) == 0:
		return nil, nil, refuse("invalid", "containers", "a machine has a container")
	case len(wanted.Containers) > 1:
		return nil, nil, refuse("unsupported", "containers.1", "a machine has one container here")
	case len(wanted.Containers[0].Command) == 0:
		return nil, nil, refuse("unsupported", "containers.0.command", "this backend runs commands and no images: name a command")
	}
	return &wanted, value, nil
}

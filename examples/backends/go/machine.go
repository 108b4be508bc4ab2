package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	tombstoneTime = time.Hour
	running       = "running"
	stopped       = "stopped"
	deleted       = "deleted"
)

// shown is a machine as the API shows it.
type shown struct {
	ID           string            `json:"id"`
	Version      int64             `json:"version"`
	Revision     int64             `json:"revision"`
	Labels       map[string]string `json:"labels"`
	State        string            `json:"state"`
	Reachability string            `json:"reachability"`
	SandboxReady bool              `json:"sandbox_ready"`
	CreatedAt    string            `json:"created_at"`
	StartedAt    string            `json:"started_at,omitempty"`
	StoppedAt    string            `json:"stopped_at,omitempty"`
	DeletedAt    string            `json:"deleted_at,omitempty"`
	Addresses    []struct{}        `json:"addresses"`
	Containers   []*status         `json:"containers"`
}

type status struct {
	Name         string      `json:"name"`
	Kind         string      `json:"kind"`
	State        string      `json:"state"`
	Reason       string      `json:"reason,omitempty"`
	Ready        bool        `json:"ready"`
	Started      bool        `json:"started"`
	RestartCount int         `json:"restart_count"`
	Image        string      `json:"image"`
	ImageID      string      `json:"image_id"`
	ID           string      `json:"id,omitempty"`
	StartedAt    string      `json:"started_at,omitempty"`
	Terminated   *terminated `json:"terminated,omitempty"`
	Last         *terminated `json:"last,omitempty"`
}

type terminated struct {
	ExitCode   int    `json:"exit_code"`
	Reason     string `json:"reason"`
	Message    string `json:"message,omitempty"`
	StartedAt  string `json:"started_at,omitempty"`
	FinishedAt string `json:"finished_at"`
	ID         string `json:"id,omitempty"`
}

// record is all that is known of a machine, as it is on disk.
type record struct {
	Shown       shown      `json:"shown"`
	Spec        *spec      `json:"spec"` // nil for a tombstone: secrets go, the exit code stays
	Fingerprint string     `json:"fingerprint"`
	Wanted      string     `json:"wanted"`
	Instance    int        `json:"instance"` // number of the container's last one
	Due         *time.Time `json:"due"`      // when the next one is; nil while one is under way
	Crashes     int        `json:"crashes"`
	KillAt      *time.Time `json:"kill_at"`
	Asked       bool       `json:"asked"` // to stop, by its signal
}

// machine is one folder: record.json, and one folder for each instance of its container (the last two are kept).
type machine struct {
	record
	folder string
}

func (m *machine) isOver() bool { return m.Shown.State == stopped || m.Shown.State == deleted }

func (m *machine) main() *status { return m.Shown.Containers[0] }

// instance is the folder of the last instance, or of one before it; "" when there was none.
func (m *machine) instance(back int) string {
	if m.Instance <= back {
		return ""
	}
	return filepath.Join(m.folder, strconv.Itoa(m.Instance-back))
}

// control is the pipe to the shim: one that nobody reads cannot be opened for writing.
func (m *machine) control() (*os.File, error) {
	return os.OpenFile(filepath.Join(m.instance(0), "control"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
}

func (m *machine) shimLives() (bool, error) {
	pipe, err := m.control()
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, pipe.Close()
}

func (m *machine) send(signal syscall.Signal) {
	if pipe, err := m.control(); err == nil { // else it has just ended by itself
		fmt.Fprintln(pipe, int(signal))
		pipe.Close()
	}
}

func (m *machine) spawn() error {
	folder := m.instance(0)
	os.RemoveAll(folder)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	path := filepath.Join(folder, "control")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return err
	}
	// It has a reader from here on: first this process, then the shim, never none.
	control, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	command := exec.Command(program, "-shim")
	command.Dir, command.Stdin, command.Stderr = folder, control, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	go command.Wait() // how its container ended, it writes down
	if old := m.instance(2); old != "" {
		os.RemoveAll(old)
	}
	return nil
}

type backend struct {
	lock     sync.Mutex
	changed  chan struct{} // closed, and another one made, with every change
	held     *os.File
	state    string
	machines map[string]*machine
	revision int64
}

func openBackend(state string) (*backend, error) {
	b := &backend{changed: make(chan struct{}), state: state, machines: map[string]*machine{}}
	if err := os.MkdirAll(filepath.Join(state, "machines"), 0o700); err != nil {
		return nil, err
	}
	var err error
	if b.held, err = os.OpenFile(filepath.Join(state, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	// Two would make every machine twice.
	if err := syscall.Flock(int(b.held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another backend has %s: %w", state, err)
	}
	if _, err := readFile(filepath.Join(state, "revision"), &b.revision); err != nil {
		return nil, err
	}
	folders, err := os.ReadDir(filepath.Join(state, "machines"))
	if err != nil {
		return nil, err
	}
	for _, each := range folders {
		m := &machine{folder: filepath.Join(state, "machines", each.Name())}
		found, err := readFile(filepath.Join(m.folder, "record.json"), &m.record)
		if err != nil {
			return nil, err
		}
		if found { // else the create was never answered
			b.machines[each.Name()] = m
			// The counter of all changes outlives a restart.
			b.revision = max(b.revision, m.Shown.Revision)
		}
	}
	return b, nil
}

// save is what every change goes through: its version, the revision, the disk, those who wait.
func (b *backend) save(m *machine) error {
	b.revision++
	m.Shown.Version++
	m.Shown.Revision = b.revision
	if err := os.MkdirAll(m.folder, 0o700); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(m.folder, "record.json"), m.record); err != nil {
		return err
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

func (b *backend) find(id string) (*machine, error) {
	// The only proof of absence: this folder is all there is. A platform that does not answer is `unavailable` instead.
	if m := b.machines[id]; m != nil {
		return m, nil
	}
	return nil, refuse("not_found", "", "there is no machine %s", id)
}

func (b *backend) create(id string, wanted *spec, value any) (*machine, error) {
	canonical, err := json.Marshal(value) // maps in the order of their keys
	if err != nil {
		return nil, err
	}
	fingerprint := fmt.Sprintf("%x", sha256.Sum256(canonical))
	if m := b.machines[id]; m != nil {
		// A create that comes late must not revive what was deleted, a repeated one must not make a second machine.
		if m.Wanted == deleted {
			return nil, refuse("gone", "", "machine %s was deleted", id)
		}
		if m.Fingerprint != fingerprint {
			return nil, refuse("conflict", "", "machine %s exists with another specification", id)
		}
		return m, nil
	}
	main := wanted.Containers[0]
	m := b.newMachine(id, running)
	m.Spec, m.Fingerprint, m.Shown.Labels = wanted, fingerprint, wanted.Labels
	m.Shown.Containers = []*status{{
		Name: main.Name, Kind: "main", State: "waiting", Reason: "ContainerCreating", Image: main.Image, ImageID: main.Image,
	}}
	return m, b.add(m)
}

func (b *backend) newMachine(id, wanted string) *machine {
	return &machine{folder: filepath.Join(b.state, "machines", id), record: record{
		Shown: shown{
			ID: id, Labels: map[string]string{}, State: "creating", Reachability: "ok", SandboxReady: true, CreatedAt: now(),
			Addresses: []struct{}{}, Containers: []*status{},
		},
		Wanted: wanted, Due: &time.Time{},
	}}
}

func (b *backend) add(m *machine) error {
	if err := b.save(m); err != nil {
		return err
	}
	b.machines[m.Shown.ID] = m
	return nil
}

func (b *backend) stop(m *machine, graceSeconds float64) error {
	if m.isOver() {
		return nil
	}
	if m.Wanted == running {
		m.Wanted = stopped
	}
	// Of several stops the one that ends first counts.
	killAt := time.Now().Add(time.Duration(graceSeconds * float64(time.Second)))
	if m.KillAt == nil || killAt.Before(*m.KillAt) {
		m.KillAt = &killAt
	}
	m.Shown.State = "stopping"
	if err := b.save(m); err != nil {
		return err
	}
	return b.tend(m)
}

func (b *backend) delete(id string, force bool) error {
	m := b.machines[id]
	if m == nil {
		// Its create may still be on the way, and finds the tombstone.
		m = b.newMachine(id, deleted)
		if err := b.add(m); err != nil {
			return err
		}
	}
	if m.Shown.State == deleted {
		return nil
	}
	m.Wanted = deleted
	if m.Spec != nil && !m.isOver() {
		grace := 30.0
		if m.Spec.TerminationGraceS != nil {
			grace = *m.Spec.TerminationGraceS
		}
		if force {
			grace = 0
		}
		return b.stop(m, grace)
	}
	m.Shown.State = "deleting"
	if err := b.save(m); err != nil {
		return err
	}
	return b.tend(m)
}

func (b *backend) tendAll() {
	for {
		b.lock.Lock()
		for _, m := range b.machines {
			if err := b.tend(m); err != nil { // a full disk, no process left: tried again, and the other machines go on
				log.Printf("machine %s: %v", m.Shown.ID, err)
			}
		}
		b.lock.Unlock()
		time.Sleep(50 * time.Millisecond)
	}
}

// tend looks at what is, and does the next step towards what is wanted.
func (b *backend) tend(m *machine) error {
	if m.Shown.State == deleted {
		return b.forget(m)
	}
	isLeft := m.Spec == nil || m.isOver() || m.Shown.State == "deleting"
	if !isLeft {
		if err := b.tendContainer(m); err != nil {
			return err
		}
	}
	if m.Wanted != deleted || !(isLeft || m.isOver()) {
		return nil
	}
	m.Spec = nil
	m.Shown.State, m.Shown.DeletedAt, m.Shown.SandboxReady = deleted, now(), false
	if err := b.save(m); err != nil {
		return err
	}
	for _, back := range []int{0, 1} {
		if folder := m.instance(back); folder != "" {
			os.RemoveAll(folder)
		}
	}
	return nil
}

func (b *backend) tendContainer(m *machine) error {
	main := m.main()
	if m.Due != nil {
		if m.Wanted != running {
			return b.over(m)
		}
		if time.Now().Before(*m.Due) {
			return nil
		}
		m.Due = nil
		m.Instance++
		if err := b.save(m); err != nil {
			return err
		}
		return m.spawn()
	}
	lives, err := m.shimLives() // before what it has written last
	if err != nil {
		return err
	}
	var ended end
	var startedAt string
	hasEnded, err := readFile(filepath.Join(m.instance(0), "exit"), &ended)
	if err != nil {
		return err
	}
	hasStarted, err := readFile(filepath.Join(m.instance(0), "started"), &startedAt)
	if err != nil {
		return err
	}
	if !hasStarted && !lives { // this backend was killed before it began
		if m.Wanted == running {
			return m.spawn()
		}
		return b.over(m)
	}
	if hasStarted && main.State != running {
		main.State, main.Reason, main.Ready, main.Started = running, "", true, true
		main.StartedAt, main.RestartCount = startedAt, m.Instance-1
		main.ID = fmt.Sprintf("%s-%d", m.Shown.ID, m.Instance)
		if m.Wanted == running {
			m.Shown.State, m.Shown.StartedAt = running, startedAt
		}
		if err := b.save(m); err != nil {
			return err
		}
	}
	if !hasEnded && !lives { // the host went down, or somebody has killed the shim and with it what it ran
		ended = end{ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "its shim was killed", At: now()}
		if err := writeFile(filepath.Join(m.instance(0), "exit"), ended); err != nil {
			return err
		}
		hasEnded = true
	}
	if hasEnded {
		return b.ended(m, ended)
	}
	if m.Wanted == running {
		return nil
	}
	if !m.Asked {
		signal := signalNumber(m.Spec.Containers[0].Stop.Signal)
		if signal == 0 {
			signal = syscall.SIGTERM
		}
		m.send(signal)
		m.Asked = true
	}
	if !time.Now().Before(*m.KillAt) {
		m.send(syscall.SIGKILL)
	}
	return nil
}

func (b *backend) ended(m *machine, ended end) error {
	main, policy := m.main(), m.Spec.RestartPolicy
	last := &terminated{ended.ExitCode, ended.Reason, ended.Message, main.StartedAt, ended.At, main.ID}
	main.Ready = false
	if m.Wanted != running || policy == "never" || policy == "on_failure" && ended.ExitCode == 0 {
		main.State, main.Terminated = "terminated", last
		return b.over(m)
	}
	initial, most := 10_000.0, 300_000.0
	if m.Spec.Backoff != nil {
		initial, most = m.Spec.Backoff.InitialMs, m.Spec.Backoff.MaxMs
	}
	from, _ := time.Parse(time.RFC3339Nano, main.StartedAt)
	to, _ := time.Parse(time.RFC3339Nano, ended.At)
	if to.Sub(from).Seconds()*1000 > 2*most {
		m.Crashes = 0
	}
	waitMs := 0.0 // the first restart is immediate
	if m.Crashes > 0 {
		waitMs = math.Min(most, initial*math.Pow(2, float64(m.Crashes-1)))
	}
	due := time.Now().Add(time.Duration(waitMs * float64(time.Millisecond)))
	m.Crashes, m.Due = min(m.Crashes+1, 50), &due
	main.State, main.Reason, main.Last = "waiting", "CrashLoopBackOff", last
	return b.save(m)
}

func (b *backend) over(m *machine) error {
	if main := m.main(); main.State == "waiting" { // stopped before it ran, or between two instances
		main.Terminated, main.Last = main.Last, nil
		if main.Terminated == nil {
			main.Terminated = &terminated{ExitCode: 137, Reason: "Error", FinishedAt: now()}
		}
		main.State, main.Reason = "terminated", ""
	}
	m.Shown.State, m.Shown.StoppedAt, m.Shown.SandboxReady = stopped, now(), false
	return b.save(m)
}

func (b *backend) forget(m *machine) error {
	at, err := time.Parse(time.RFC3339Nano, m.Shown.DeletedAt)
	if err != nil || time.Since(at) < tombstoneTime {
		return err
	}
	if err := writeFile(filepath.Join(b.state, "revision"), b.revision); err != nil {
		return err
	}
	delete(b.machines, m.Shown.ID)
	return os.RemoveAll(m.folder)
}

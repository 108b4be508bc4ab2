package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

type logOptions struct {
	follow, previous bool
	tail, limit      *int64
	since            *time.Time
	stream           string
}

// logRecord is one line of a log: time, stream, mark, content.
type logRecord struct{ at, stream, mark, content []byte }

// logFolder finds the instance whose log it is. From then on it is the log of this one, whatever its machine does.
func (b *backend) logFolder(id, name string, previous bool) (*machine, string, error) {
	m, err := b.find(id)
	if err != nil {
		return nil, "", err
	}
	back := 0
	if previous {
		back = 1
	}
	folder := m.instance(back)
	if len(m.Shown.Containers) == 0 || m.main().Name != name || previous && folder == "" {
		return nil, "", refuse("not_found", "", "machine %s has no such log of a container %s", id, name)
	}
	if folder == "" || m.main().State == "waiting" && m.main().Last == nil {
		return nil, "", refuse("conflict", "", "container %s of machine %s is waiting to start", name, id)
	}
	return m, folder, nil
}

func (b *backend) sendLog(reply http.ResponseWriter, request *http.Request, m *machine, folder string, options logOptions) {
	var offset int64
	for isFirst := true; ; isFirst = false {
		ended := !exists(folder) || exists(filepath.Join(folder, "exit")) || b.hasEnded(m)
		records, next := readRecords(filepath.Join(folder, "log"), offset)
		offset = next
		kept := records[:0]
		for _, each := range records {
			at, _ := time.Parse(time.RFC3339Nano, string(each.at))
			if (options.stream == "" || options.stream == string(each.stream)) && (options.since == nil || !at.Before(*options.since)) {
				kept = append(kept, each)
			}
		}
		if isFirst && options.tail != nil {
			kept = tailOf(kept, *options.tail)
		}
		for _, each := range kept {
			if options.limit != nil {
				size := int64(len(each.content))
				if string(each.mark) == "F" {
					size++
				}
				if size > *options.limit {
					each.content, each.mark = each.content[:*options.limit], []byte("P")
					size = *options.limit
				}
				*options.limit -= size
			}
			reply.Write(append(bytes.Join([][]byte{each.at, each.stream, each.mark, each.content}, []byte(" ")), '\n'))
			if options.limit != nil && *options.limit == 0 {
				return
			}
		}
		if ended || !options.follow {
			return
		}
		reply.(http.Flusher).Flush()
		select {
		case <-request.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *backend) hasEnded(m *machine) bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	return m.isOver()
}

// readRecords gives what is whole from an offset on, and the offset to go on from.
func readRecords(path string, offset int64) ([]logRecord, int64) {
	file, err := os.Open(path)
	if err != nil {
		return nil, offset
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() <= offset {
		return nil, offset
	}
	data := make([]byte, info.Size()-offset)
	if _, err := file.ReadAt(data, offset); err != nil {
		return nil, offset
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	records := []logRecord{}
	for _, line := range bytes.Split(data, []byte("\n")) {
		if parts := bytes.SplitN(line, []byte(" "), 4); len(parts) == 4 {
			records = append(records, logRecord{parts[0], parts[1], parts[2], parts[3]})
		}
	}
	return records, offset + int64(len(data))
}

// tailOf is the last whole lines; what is marked P belongs to the line that ends after it.
func tailOf(records []logRecord, count int64) []logRecord {
	from := len(records)
	for ; from > 0; from-- {
		if from == len(records) || string(records[from-1].mark) == "F" { // a line begins behind it
			if count == 0 {
				break
			}
			count--
		}
	}
	return records[from:]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// now is the API's form of a time: UTC, milliseconds.
func now() string { return utc(time.Now()) }

func utc(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }

// writeFile writes all of it or nothing, also when the power goes.
func writeFile(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Write(data); err != nil {
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	if err = os.Rename(path+".new", path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// readFile leaves value as it is when there is no such file, and says so.
func readFile(path string, value any) (bool, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(data, value)
}

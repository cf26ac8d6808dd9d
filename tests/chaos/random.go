package main

func randomFaults(r *run) {}

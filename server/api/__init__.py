"""HTTP: one blueprint for each URL noun. Reads, asks the domain, answers; decides nothing itself."""

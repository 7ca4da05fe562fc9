"""Made by `make proto` from protos/asyncrl/v1/env.proto; never edited by hand."""

"""verl (verl-project/verl): Hydra configurations; V0 and V1 trainers, one step off, fully async."""

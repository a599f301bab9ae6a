-- Which remotes git on the server may connect to for repositories in the VMs of an account.
ALTER TABLE accounts ADD COLUMN git_relay TEXT NOT NULL DEFAULT 'known' CHECK (git_relay IN ('known', 'any'));

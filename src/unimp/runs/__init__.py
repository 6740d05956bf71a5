"""One seeded experiment, its folder, and everything a trained run can be asked."""

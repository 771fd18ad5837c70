"""From one rank to many: a step as each of its ranks would run it, told from the step of one."""

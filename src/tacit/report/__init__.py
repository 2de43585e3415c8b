"""Pictures and tables from run directories. May import everything below."""

"""What was understood of somebody's file, in words and figures: `crad data check`."""

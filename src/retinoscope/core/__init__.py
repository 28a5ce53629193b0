"""The basic classes (unit, anatomy, subject, probe, result, surgery): plain data, no algorithms."""

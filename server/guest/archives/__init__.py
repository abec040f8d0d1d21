"""Archives: whole trees packed into a stream and unpacked from one, by scripts that run as the user.

Formats are read and written here rather than by tarfile and zipfile: those take a broken header for the end,
keep all members in memory, and know no names but text.
"""

# Doxygen's filter of Markdown: links to headings, whose anchors it does not make, and to pages
# that are not part of the reference, become plain text.
s/\]\(#[^)]*\)/]/g
s/\]\((\.\.\/)?(bench|examples|packaging)\/[^)]*\)/]/g

"""The built-in page at /dashboard: one HTML file without any other, fed by /dashboard/data.

recorder.py     what happens now and happened in the last minutes
data.py         that, the engines and the machine as JSON
routes.py       page and data over HTTP
page.html       the page
"""

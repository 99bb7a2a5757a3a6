"""`python -m spark_images VERB …`"""

import sys

from spark_images.cli import main

sys.exit(main(sys.argv[1:]))

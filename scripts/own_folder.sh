# To be sourced: packages that must not be installed beside the others.
#   own_folder FOLDER REQUIREMENT-OR-PIP-OPTION ...
# Puts them into the folder, once and without their dependencies, and the folder in front of what
# is installed.
own_folder() {
    local folder=$1
    shift
    if [ ! -e "$folder/ready" ]; then
        rm -rf "$folder"
        "$PYTHON" -m pip install --quiet --no-deps --target "$folder" "$@"
        touch "$folder/ready"
    fi
    export PYTHONPATH="$PWD:$PWD/$folder"
}

#!/bin/sh
# What the tests want from the system besides Python: Java 17 or newer, Maven, a PostgreSQL server, Chromium, kcat.
# Installs what is missing where it may (root, or sudo without a password); otherwise says in one line what to install.
# Never fails: a test that lacks one of them says so itself.
set -u

java_found() {
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] && command -v javac >/dev/null
}

postgres_found() {
    command -v postgres >/dev/null && return
    for found in /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres /opt/homebrew/opt/postgresql*/bin/postgres; do
        [ -x "$found" ] && return
    done
    return 1
}

chromium_found() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" >/dev/null && return
    done
    [ -d "/Applications/Chromium.app" ] || [ -d "/Applications/Google Chrome.app" ]
}

look() {
    missing=""
    java_found || missing="$missing java"
    command -v mvn >/dev/null || missing="$missing maven"
    postgres_found || missing="$missing postgresql"
    chromium_found || missing="$missing chromium"
    command -v kcat >/dev/null || missing="$missing kcat"
}

in_words() {
    echo "$missing" | sed 's/ java/ JDK-17-or-newer/; s/ postgresql/ PostgreSQL-server/'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null
}

# The first of the given packages that apt knows; names differ between releases.
apt_package() {
    for package in "$@"; do
        if apt-cache show "$package" 2>/dev/null | grep -q '^Package:'; then
            echo "$package"
            return
        fi
    done
}

apt_install() {
    as_root apt-get update -qq
    for part in $missing; do
        case $part in
            java) package=$(apt_package openjdk-21-jdk-headless openjdk-17-jdk-headless openjdk-25-jdk-headless) ;;
            chromium) package=$(apt_package chromium chromium-browser) ;;
            *) package=$part ;;
        esac
        [ -z "$package" ] || as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
    done
}

dnf_install() {
    for part in $missing; do
        case $part in
            java) as_root dnf install -y -q java-21-openjdk-devel || as_root dnf install -y -q java-17-openjdk-devel ;;
            postgresql) as_root dnf install -y -q postgresql-server ;;
            *) as_root dnf install -y -q "$part" ;;
        esac
    done
}

brew_install() {
    for part in $missing; do
        case $part in
            java) brew install --quiet openjdk ;;
            chromium) brew install --quiet --cask chromium ;;
            *) brew install --quiet "$part" ;;
        esac
    done
}

install() {
    echo "system: installing$missing" >&2
    if command -v brew >/dev/null; then
        brew_install
    elif command -v apt-get >/dev/null && may_install; then
        apt_install
    elif command -v dnf >/dev/null && may_install; then
        dnf_install
    fi >/dev/null 2>&1 </dev/null
}

look
[ -z "$missing" ] && exit 0
install
look
[ -z "$missing" ] || echo "system: please install$(in_words) yourself; tests that need them will say so" >&2
exit 0

#!/bin/sh
set -e
cat > /app/top.sh <<'END'
#!/bin/sh
LC_ALL=C awk '
    NF >= 9 && $4 ~ /^\[/ && $(NF - 1) ~ /^[0-9][0-9][0-9]$/ && $NF ~ /^([0-9]+|-)$/ {
        sum[$1] += $NF == "-" ? 0 : $NF
    }
    END { for (address in sum) printf "%.0f %s\n", sum[address], address }
' | LC_ALL=C sort -k1,1nr -k2,2 | head -n "$1"
END
chmod 755 /app/top.sh
